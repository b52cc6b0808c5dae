"""Text to token ids and back, with a checkpoint's own tokenizer, chat template and stop ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel

from .byte_level import spelled_bytes
from .chat import ChatTemplate, find_template
from .config import read_json
from .errors import LoopedError
from .stops import CHAT_END, find_stop_token_ids

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The tokenizer of one model folder.

    Args:
        fast: the parsed tokenizer.json.
        template: the chat template, None where the checkpoint has none.
        stop_token_ids: ids that end a sequence.
    """

    def __init__(
        self,
        fast: FastTokenizer,
        *,
        template: ChatTemplate | None,
        stop_token_ids: frozenset[int],
    ) -> None:
        self._fast = fast
        added = fast.get_added_tokens_decoder()
        self._special_ids = frozenset(id for id, token in added.items() if token.special)
        self._added_bytes = {id: token.content.encode() for id, token in added.items()}
        self._is_byte_level = isinstance(fast.decoder, ByteLevel)
        self._template = template
        self.stop_token_ids = stop_token_ids

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Reads tokenizer.json, the chat template and everything that names an end of sequence.

        Raises:
            LoopedError: when tokenizer.json is missing or cannot be parsed.
        """
        path = folder / "tokenizer.json"
        if not path.exists():
            raise LoopedError(f"{path} is missing; give token ids instead of text (--prompt-ids)")
        try:
            fast = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise LoopedError(f"{path} cannot be parsed: {error}") from None
        settings = _optional_json(folder / "tokenizer_config.json")
        return cls(
            fast,
            template=find_template(folder, settings),
            stop_token_ids=find_stop_token_ids(folder, fast),
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text as it is: no template, and no token added."""
        # A batch of one: the library keeps Python's lock during `encode`, and gives it up here, so
        # that a long prompt does not stop an engine that runs in another thread.
        (encoding,) = self._fast.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def encode_chat(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation in the checkpoint's template, ready for the answer."""
        if self._template is None:
            raise LoopedError("this checkpoint has no chat template; leave out --chat")
        return self.encode(self._template.render(messages))

    @property
    def chat_end_token_ids(self) -> frozenset[int]:
        """Where a chat ends besides: the template's end of a turn, if the vocabulary has it."""
        end = self._fast.token_to_id(CHAT_END)
        return frozenset() if end is None else frozenset({end})

    def decode(self, ids: Sequence[int], *, has_special: bool = False) -> str:
        """Text of token ids, without special tokens or with; broken UTF-8 becomes U+FFFD."""
        return self._fast.decode(list(ids), skip_special_tokens=not has_special)

    def is_special(self, token_id: int) -> bool:
        """Whether `decode` leaves the token out unless it is asked for it."""
        return token_id in self._special_ids

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
        """Text of one token by itself: a special token's name, U+FFFD for a part of a character.

        An id that only the model knows, as padded vocabularies have, is an empty text.
        """
        return self._fast.decode([token_id], skip_special_tokens=False)


class Detokenizer:
    """Turns a growing sequence of token ids into text, piece by piece.

    A character may be split over tokens, so a piece that ends inside one is held back until the
    rest has come: the pieces always add up to `Tokenizer.decode` of the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Ids since the last point at which the text was certainly complete, and how much of their
        # text has been given out. One settled id is kept in front: some decoders treat a leading
        # token specially.
        self._pending: list[int] = []
        self._num_emitted = 0

    def add(self, token_id: int) -> str:
        """The text that this token makes certain; often empty inside a multi-byte character."""
        self._pending.append(token_id)
        text = self._tokenizer.decode(self._pending)
        if not text.endswith(REPLACEMENT):
            piece = text[self._num_emitted :]
            self._pending = [token_id]
            self._num_emitted = len(self._tokenizer.decode(self._pending))
            return piece
        # Only the last character can still change: an unfinished one is a single U+FFFD.
        piece = text[self._num_emitted : -1]
        self._num_emitted += len(piece)
        return piece

    def finish(self) -> str:
        """What was held back; U+FFFD where a character stayed unfinished."""
        piece = self._tokenizer.decode(self._pending)[self._num_emitted :]
        self._pending, self._num_emitted = [], 0
        return piece


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
