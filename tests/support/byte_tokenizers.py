"""Tokenizers whose tokens are whatever bytes a test wants, so that any text can be cut anywhere."""

from collections.abc import Sequence

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from looped.text.tokenizer import Tokenizer


def byte_characters() -> dict[int, str]:
    """The character by which a byte-level vocabulary spells each byte (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    return table | {byte: chr(256 + number) for number, byte in enumerate(hidden)}


BYTE_CHARACTERS = byte_characters()


def cut(pieces: Sequence[bytes]) -> tuple[Tokenizer, list[int]]:
    """A tokenizer that has these pieces for tokens, and their ids in this order."""
    spelled = ["".join(BYTE_CHARACTERS[byte] for byte in piece) for piece in pieces]
    ids = {text: token_id for token_id, text in enumerate(dict.fromkeys([*spelled, "unknown"]))}
    fast = FastTokenizer(models.WordLevel(ids, unk_token="unknown"))
    fast.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(fast, template=None, stop_token_ids=frozenset())
    return tokenizer, [ids[text] for text in spelled]


def byte_fallback(
    words: Sequence[str],
    special: Sequence[str] = (),
    plain: Sequence[str] = (),
    more_special: Sequence[str] = (),
) -> Tokenizer:
    """Llama's kind of tokenizer: ids 0 to 255 are bytes, then come words and added tokens: special
    ones, plain ones, and special ones again."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *words]
    ids = {name: token_id for token_id, name in enumerate(names)}
    fast = FastTokenizer(models.WordLevel(ids, unk_token=names[0]))
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast.add_special_tokens(list(special))
    fast.add_tokens(list(plain))
    fast.add_special_tokens(list(more_special))
    return Tokenizer(fast, template=None, stop_token_ids=frozenset())
