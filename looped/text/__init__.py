"""Text and tokens: everything between what users write and what the engine serves.

tokenizer, special_tokens, byte_level     text to ids and back, as transformers has it
chat_template                             conversations to text
detokenizer, text_stream, text_outputs    tokens to text as they come
stop_ids, stop_strings                    where a text ends
request_file, completion_json             requests from files; completions as JSON
perplexity                                scores of given texts
"""
