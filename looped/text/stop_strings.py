"""Finds stop strings in a text that comes character by character.

One Knuth-Morris-Pratt matcher per stop string: how much of its beginning the text ends with is all
there is to know, for a match and for what must be held back.
"""

from collections.abc import Sequence


class StopStringSearch:
    """Reads a text once and says where stop strings end in it.

    Args:
        stop: stop strings, none of them empty.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._borders = [_borders(text) for text in self._stop]
        # Of each stop string, the length of its longest proper prefix that the text ends with.
        self._num_matched = [0] * len(self._stop)

    def add(self, character: str) -> str | None:
        """The next character of the text: the longest stop string that ends with it, or None."""
        found: str | None = None
        for index, (text, borders) in enumerate(zip(self._stop, self._borders, strict=True)):
            matched = self._num_matched[index]
            while matched and text[matched] != character:
                matched = borders[matched]
            if text[matched] == character:
                matched += 1
            if matched == len(text):
                found = text if found is None or len(text) > len(found) else found
                matched = borders[matched]
            self._num_matched[index] = matched
        return found

    @property
    def num_partial(self) -> int:
        """Characters of the longest end of the text that is a proper prefix of a stop string."""
        return max(self._num_matched, default=0)


def _borders(text: str) -> list[int]:
    """Entry n: how long the longest proper prefix of text[:n] is that text[:n] also ends with."""
    borders = [0, 0]
    for end in range(1, len(text)):
        border = borders[end]
        while border and text[border] != text[end]:
            border = borders[border]
        borders.append(border + 1 if text[border] == text[end] else 0)
    return borders
