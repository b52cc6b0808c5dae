"""Text on stdout while it is made, in the order of the prompts, however they finish."""

from looped.outputs import Completion, TokenEvent


class OrderedTextPrinter:
    """Prints the first unfinished prompt's text as it comes and holds back that of the others.

    Args:
        num_prompts: prompts are named "0", "1", …
        has_text: whether outputs come with text; otherwise token ids are printed.
    """

    def __init__(self, num_prompts: int, *, has_text: bool) -> None:
        self._has_text = has_text
        self._num_characters = [0] * num_prompts
        self._held = [""] * num_prompts
        self._is_done = [False] * num_prompts
        self._current = 0

    def add(self, event: TokenEvent) -> None:
        """One new token of any prompt."""
        index = int(event.request_id)
        self._held[index] += event.text if self._has_text else f"{event.token_id} "
        self._num_characters[index] += len(event.text)
        self._flush()

    def finish(self, completion: Completion) -> None:
        """One prompt is complete: what its events have not brought follows, and its line ends."""
        index = int(completion.request_id)
        self._held[index] += (completion.text or "")[self._num_characters[index] :] + "\n"
        self._is_done[index] = True
        self._flush()

    def _flush(self) -> None:
        while self._current < len(self._held):
            print(self._held[self._current], end="", flush=True)
            self._held[self._current] = ""
            if not self._is_done[self._current]:
                return
            self._current += 1
