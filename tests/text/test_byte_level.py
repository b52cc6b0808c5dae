"""Token ids, bytes and texts of byte-level vocabularies."""

from pathlib import Path

from byte_tokenizers import BYTE_CHARACTERS
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from looped.text.byte_level import spelled_bytes
from looped.text.tokenizer import Tokenizer


def test_the_alphabet_is_the_one_that_byte_level_vocabularies_use():
    assert {byte: spelled_bytes(text) for byte, text in BYTE_CHARACTERS.items()} == {
        byte: bytes([byte]) for byte in range(256)
    }
    assert spelled_bytes("") == b""
    assert spelled_bytes("\N{LATIN SMALL LETTER A WITH MACRON}") == b"\x01"
    assert spelled_bytes("\N{GRINNING FACE}") is None


def test_bytes_of_tokens_add_up_to_the_text(tiny_folder: Path):
    tokenizer = Tokenizer.from_folder(tiny_folder)
    text = "<|im_start|>user\n\N{GRINNING FACE} hé<|im_end|>"
    ids = tokenizer.encode(text)
    assert b"".join(filter(None, map(tokenizer.token_bytes, ids))) == text.encode()
    assert tokenizer.decode(ids, has_special=True) == text
    assert tokenizer.decode(ids) == "user\n\N{GRINNING FACE} hé"
    assert [tokenizer.is_special(i) for i in (0, 1, 2, 3)] == [True, True, True, False]
    assert tokenizer.token_bytes(100_000) == b""  # padding of the model's vocabulary


def test_bytes_of_other_vocabularies_are_not_made_up():
    fast = FastTokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    fast.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(fast, template=None, stop_token_ids=frozenset())
    assert tokenizer.token_bytes(0) is None
