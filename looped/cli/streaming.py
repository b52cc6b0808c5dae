"""Text on stdout while it is made, in the order of the prompts, however they finish."""

from collections.abc import Sequence

from looped.engine.outputs import Completion, TokenEvent


class OrderedTextPrinter:
    """Prints the first unfinished sample's text as it comes and holds back that of the others.

    Args:
        names: request id and sample index of each sample, in the order in which to print them.
        has_text: whether outputs come with text; otherwise token ids are printed.
    """

    def __init__(self, names: Sequence[tuple[str, int]], *, has_text: bool) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._has_text = has_text
        self._num_characters = [0] * len(names)
        self._held = [""] * len(names)
        self._is_done = [False] * len(names)
        self._current = 0

    def add(self, event: TokenEvent) -> None:
        """One new token of any sample."""
        place = self._places[event.request_id, event.sample_index]
        self._held[place] += event.text if self._has_text else f"{event.token_id} "
        self._num_characters[place] += len(event.text)
        self._flush()

    def finish(self, completion: Completion) -> None:
        """One sample is complete: what its events have not brought follows, and its line ends."""
        place = self._places[completion.request_id, completion.sample_index]
        self._held[place] += (completion.text or "")[self._num_characters[place] :] + "\n"
        self._is_done[place] = True
        self._flush()

    def _flush(self) -> None:
        while self._current < len(self._held):
            print(self._held[self._current], end="", flush=True)
            self._held[self._current] = ""
            if not self._is_done[self._current]:
                return
            self._current += 1
