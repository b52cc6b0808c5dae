"""One request's text as its tokens come: whole characters, and never a part of a stop string."""

from collections.abc import Sequence

from .detokenizer import Detokenizer
from .stop_strings import StopStringSearch
from .tokenizer import Tokenizer


class TextStream:
    """Turns the tokens of one request into text up to its first stop string.

    How the text is cut into tokens makes no difference: the stop string whose last character comes
    first in the text ends it, and of several that end with the same character the longest. Held
    back is what a later token may change, an unfinished character, and what may become a stop
    string: the longest end of the text that is a proper prefix of one.

    Args:
        tokenizer: the model's.
        stop: stop strings, none of them empty; without any, all text is given out.
        include_stop_str_in_output: whether the stop string itself is given out.
        min_tokens: a stop string counts only if its last character comes with a token of this
            output index or a later one, as with stop ids.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._search = StopStringSearch(stop)
        self._include_stop_str_in_output = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._held = ""
        self._given_out: list[str] = []
        self.stop_string: str | None = None
        """The stop string that ended the text; None while there is none."""
        self.num_tokens = 0
        """Tokens added up to the one that completed the stop string, that one included."""

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._given_out)

    def add(self, token_id: int) -> str:
        """The text that this token makes certain; nothing once a stop string has been found."""
        if self.stop_string is not None:
            return ""
        self.num_tokens += 1
        return self._release(self._detokenizer.add(token_id))

    def finish(self) -> str:
        """The rest, when no token is to come: a stop string that stayed incomplete is text.

        A character that stayed unfinished is U+FFFD, and may itself complete a stop string.
        """
        if self.stop_string is not None:
            return ""
        piece = self._release(self._detokenizer.finish())
        rest, self._held = self._held, ""
        self._given_out.append(rest)
        return piece + rest

    def _release(self, piece: str) -> str:
        """Takes the next certain piece of text and gives out what no stop string can reach."""
        text = self._held + piece
        cut = None
        for end, character in enumerate(piece, start=len(self._held) + 1):
            found = self._search.add(character)
            if found is not None and self.num_tokens > self._min_tokens:
                self.stop_string = found
                cut = end if self._include_stop_str_in_output else end - len(found)
                break
        if cut is None:
            cut = len(text) - self._search.num_partial
        self._held = text[cut:] if self.stop_string is None else ""
        self._given_out.append(text[:cut])
        return text[:cut]
