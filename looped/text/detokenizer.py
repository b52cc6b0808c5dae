"""Text of one request's tokens as they come, a whole character at a time."""

from itertools import pairwise

from .tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LEADING_TOKEN = "x"
"""Stands for all tokens that are forgotten, so that no later one is taken for the first."""
NUM_CONTEXT_TOKENS = 6
"""Tokens kept before the last, no two empty ones in a row. Of a character that they begin inside
of, at most three bytes are left."""
MAX_WINDOW = 16
"""Tokens that are decoded together at most."""


class Detokenizer:
    """Turns a growing sequence of token ids into text, piece by piece.

    A character may be split over tokens, so a piece that ends inside one is held back until the
    rest has come: the pieces always add up to `Tokenizer.decode` of the whole. That holds for
    decoders that look at a token, its neighbours and whether it is the first: byte-level, byte
    fallback, Metaspace, WordPiece and their like. Time is linear in the number of tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The last tokens, and how many characters of their text have been given out.
        self._window: list[str] = []
        self._num_emitted = 0

    def add(self, token_id: int) -> str:
        """The text that this token makes certain; often empty inside a multi-byte character."""
        token = self._tokenizer.spelling(token_id)
        if token is None:
            return ""
        self._window.append(token)
        text = self._tokenizer.join(self._window)
        # Only the last character can still change: an unfinished one is a single U+FFFD.
        piece = text.removesuffix(REPLACEMENT)[self._num_emitted :]
        self._num_emitted += len(piece)
        if len(self._window) == MAX_WINDOW:
            self._shorten(num_held=len(text) - self._num_emitted)
        return piece

    def finish(self) -> str:
        """What was held back; U+FFFD where a character stayed unfinished."""
        piece = self._tokenizer.join(self._window)[self._num_emitted :]
        self._window, self._num_emitted = [], 0
        return piece

    def _shorten(self, num_held: int) -> None:
        """Leaves only tokens that the text of a later one may depend on.

        They may begin inside a character and then have another text than they had, but not in
        the end: UTF-8 is in step again after three bytes.
        """
        *earlier, last = self._window
        context = [
            token for before, token in pairwise([LEADING_TOKEN, *earlier]) if before or token
        ]
        self._window = [LEADING_TOKEN, *context[-NUM_CONTEXT_TOKENS:], last]
        self._num_emitted = len(self._tokenizer.join(self._window)) - num_held
