"""The demo's tokenizer: every word of its problems is a token, any other text is spelled in bytes.

Digits are tokens of their own, with or without the space before them, so that a number has one
token a digit. Special tokens are Ouro's, with Ouro's ids.
"""

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from . import expressions, problems

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_ID, CHAT_END_ID = 0, 2
PIECES = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]|\s"
"""What may become a token: a word, a digit or a sign, each with one space before it."""
CHAT_WORDS = ("user", "assistant", "system", "\n")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def demo_tokenizer() -> Tokenizer:
    """Special tokens, the 256 bytes, then the words of all templates in alphabetical order."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(byte_level.alphabet())
    spelled = {byte_level.pre_tokenize_str(word)[0][0] for word in _words()}
    tokens = [*SPECIAL_TOKENS, *alphabet, *sorted(spelled - set(alphabet))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Without merges, a piece that is no word of the vocabulary falls apart into bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    return tokenizer


def chat_prompt(question: str) -> str:
    """A question as `CHAT_TEMPLATE` renders it, ready for the answer."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def write_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json and what says how a chat looks and where a text ends."""
    demo_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[END_ID],
        "pad_token": SPECIAL_TOKENS[END_ID],
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"eos_token_id": [END_ID, CHAT_END_ID], "pad_token_id": END_ID}
    for name, values in (("tokenizer_config", settings), ("generation_config", generation)):
        text = json.dumps(values, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def _words() -> set[str]:
    """Every piece that problems, their solutions and chats are made of."""
    templates = [
        problems.START,
        *(event for events in problems.EVENTS.values() for event in events),
        *problems.RELATIONS.values(),
        problems.STORY_QUESTION,
        problems.RELATION_QUESTION,
        problems.ANSWER,
        *expressions.EXPRESSION_PROMPTS,
        *(f"({sign}) =" for sign in expressions.OPERATIONS),
    ]
    texts = [re.sub(r"\{\w+\}", "", template) for template in templates]
    words = {piece.strip() for text in texts for piece in re.findall(PIECES, text)}
    words |= {*problems.NAMES, *problems.ITEMS, *map(str, range(10))}
    words.discard("")
    return words | {f" {word}" for word in words} | set(CHAT_WORDS)
