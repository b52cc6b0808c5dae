"""Text to token ids and back, with a checkpoint's own tokenizer, chat template and stop ids."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE

from looped.errors import LoopedError, brief
from looped.model_files import read_text

from .byte_level import ALPHABET, spelled_bytes
from .chat_template import BrokenTemplate, ChatTemplate, find_template
from .special_tokens import SETTINGS_FILE, SpecialTokens, read_optional_json
from .stop_ids import CHAT_END, find_stop_token_ids

BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
"""How vocabularies with byte fallback spell a single byte."""


class Tokenizer:
    """The tokenizer of one model folder.

    Args:
        fast: the parsed tokenizer.json.
        template: the chat template, None where the checkpoint has none; a broken one refuses.
        stop_token_ids: ids that end a sequence.
    """

    def __init__(
        self,
        fast: FastTokenizer,
        *,
        template: ChatTemplate | BrokenTemplate | None,
        stop_token_ids: frozenset[int],
    ) -> None:
        self._fast = fast
        self._decoder = fast.decoder
        self._has_byte_tokens = fast.decoder is not None and fast.decoder.decode(["<0x61>"]) == "a"
        self._is_byte_level = isinstance(fast.decoder, ByteLevel)
        added = fast.get_added_tokens_decoder()
        self._added_bytes = {id: token.content.encode() for id, token in added.items()}
        self._template = template
        self.stop_token_ids = stop_token_ids
        self.special_token_ids = {
            token.content: token_id for token_id, token in added.items() if token.special
        }
        """By name; no text contains them."""

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Reads tokenizer.json, the chat template and everything that names special tokens.

        What a tokenizer.json has of its training is off: truncation, padding, and merges that are
        dropped at random.

        Raises:
            LoopedError: tokenizer.json is missing or cannot be parsed, or another file contradicts
                it.
        """
        path = folder / "tokenizer.json"
        if not path.exists():
            raise LoopedError(f"{path} is missing; give token ids instead of text (--prompt-ids)")
        text = read_text(path)
        try:
            fast = FastTokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise LoopedError(f"{path} cannot be parsed: {brief(error, 100)}") from None
        fast.no_truncation()
        fast.no_padding()
        if isinstance(fast.model, BPE):
            fast.model.dropout = None
        settings = read_optional_json(folder / SETTINGS_FILE)
        special_tokens = SpecialTokens.from_folder(folder, settings)
        special_tokens.add_to(fast)
        # Then a text is a text, even if it spells a token.
        fast.encode_special_tokens = bool(settings.get("split_special_tokens"))
        return cls(
            fast,
            template=find_template(folder, settings, special_tokens.texts),
            stop_token_ids=find_stop_token_ids(folder, fast),
        )

    @property
    def vocab_size(self) -> int:
        """Ids up to the highest one."""
        return 1 + max(self._fast.get_vocab(with_added_tokens=True).values())

    @property
    def has_added_tokens(self) -> bool:
        """Whether the checkpoint would have tokens put around a text, which `encode` never does."""
        return bool(self._fast.num_special_tokens_to_add(is_pair=False))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it is: no template, and no token added."""
        # A batch of one: the library keeps Python's lock during `encode`, and gives it up here, so
        # that a long prompt does not stop an engine that runs in another thread.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation in the checkpoint's template, ready for the answer."""
        return self.encode(self.render_chat(messages))

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """The text that `encode_chat` encodes."""
        if self._template is None:
            raise LoopedError("this checkpoint has no chat template; leave out --chat")
        return self._template.render(messages)

    @cached_property
    def most_characters_per_token(self) -> int | None:
        """No text is longer than so many characters for each of its tokens.

        None where that is not known: a vocabulary that is not a byte-level one, or steps before it
        that may drop a part of the text.
        """
        settings = json.loads(self._fast.to_str())
        vocabulary = self._fast.get_vocab(with_added_tokens=False)
        added = self._fast.get_added_tokens_decoder().values()
        normalizer = (settings["normalizer"] or {"type": None})["type"]
        if (
            settings["model"]["type"] != "BPE"
            or normalizer not in (None, "NFC")
            or not _keeps_all_text(settings["pre_tokenizer"])
            or not vocabulary.keys() >= ALPHABET
            or any(token.lstrip or token.rstrip for token in added)
        ):
            return None
        longest = max(map(len, [*vocabulary, *(token.content.encode() for token in added)]))
        # Composing makes one character of up to four.
        return 4 * longest if normalizer == "NFC" else longest

    @property
    def chat_end_token_ids(self) -> frozenset[int]:
        """Where a chat ends besides: the template's end of a turn, if the vocabulary has it."""
        end = self._fast.token_to_id(CHAT_END)
        return frozenset() if end is None else frozenset({end})

    def decode(self, ids: Sequence[int], *, has_special: bool = False) -> str:
        """Text of token ids, without special tokens or with; broken UTF-8 becomes U+FFFD.

        Without, it is the library's text, but for byte fallback: there, the library gives up all
        bytes between two other tokens for one that is broken, also a line break that was whole.
        Here as in byte-level vocabularies, every whole character stays.
        """
        if has_special:
            return self._fast.decode(list(ids), skip_special_tokens=False)
        spelled = map(self.spelling, ids)
        return self.join([token for token in spelled if token is not None])

    def spelling(self, token_id: int) -> str | None:
        """A token as the vocabulary has it; None where there is no text in it: for a special token,
        or an id that only the model knows."""
        token: str | None = self._fast.id_to_token(token_id)
        return None if token in self.special_token_ids else token

    def join(self, spelled: Sequence[str]) -> str:
        """Text of tokens that are spelled as the vocabulary has them."""
        if self._decoder is None:
            return " ".join(spelled)
        tokens = list(_mended(spelled)) if self._has_byte_tokens else list(spelled)
        return self._decoder.decode(tokens)

    def find_foreign(self, ids: Sequence[int], vocab_size: int) -> str | None:
        """The name of the first token that a model of so many tokens does not know, with its id."""
        foreign = next((token_id for token_id in ids if token_id >= vocab_size), None)
        if foreign is None:
            return None
        return f"{brief(repr(self.token_text(foreign)), 50)} (token {foreign})"

    def is_special(self, token_id: int) -> bool:
        """Whether `decode` leaves the token out unless it is asked for it."""
        return token_id in self.special_token_ids.values()

    def token_bytes(self, token_id: int) -> bytes | None:
        """What a token adds to the text, in UTF-8; a part of a character, maybe.

        None where that is not known: the vocabulary is not a byte-level one.
        """
        if token_id in self._added_bytes:
            return self._added_bytes[token_id]
        spelled = self._fast.id_to_token(token_id)
        if spelled is None:
            return b""  # an id that only the model knows
        return spelled_bytes(spelled) if self._is_byte_level else None

    def token_text(self, token_id: int) -> str:
        """Text of one token on its own: a special token's name, U+FFFD for a part of a character.

        An id that only the model knows, as padded vocabularies have, is an empty text.
        """
        return self._fast.decode([token_id], skip_special_tokens=False)


def _mended(spelled: Sequence[str]) -> Iterator[str]:
    """The tokens with U+FFFD, in bytes, for each broken character among byte tokens."""
    for is_byte, run in groupby(spelled, key=lambda token: BYTE_TOKEN.fullmatch(token) is not None):
        if is_byte:
            raw = bytes(int(token[3:5], 16) for token in run)
            whole = raw.decode(errors="replace").encode()
            yield from (f"<0x{byte:02X}>" for byte in whole)
        else:
            yield from run


def _keeps_all_text(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether what comes before a byte-level vocabulary drops nothing, and ends in bytes."""
    steps = [pre_tokenizer or {"type": None}]
    if steps[0]["type"] == "Sequence":
        steps = steps[0]["pretokenizers"]
    types = [step["type"] for step in steps]
    return (
        bool(types)
        and types[-1] == "ByteLevel"
        and set(types) <= {"ByteLevel", "Digits", "Split"}
        and all(step.get("behavior") != "Removed" for step in steps)
    )
