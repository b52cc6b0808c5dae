"""Text and tokens: tokenizer, chat template, detokenizer, stop strings, files of requests."""
