"""Text on stdout while it is made, in the order of the prompts, however they finish."""

from looped.outputs import Completion, TokenEvent
from looped.tokenizer import Detokenizer, Tokenizer


class OrderedTextPrinter:
    """Prints the first unfinished prompt's text as it comes and holds back that of the others.

    Args:
        num_prompts: prompts are named "0", "1", …
        tokenizer: None prints token ids.
    """

    def __init__(self, num_prompts: int, tokenizer: Tokenizer | None) -> None:
        self._detokenizers: list[Detokenizer | None] = [
            None if tokenizer is None else Detokenizer(tokenizer) for _ in range(num_prompts)
        ]
        self._held = [""] * num_prompts
        self._is_done = [False] * num_prompts
        self._current = 0

    def add(self, event: TokenEvent) -> None:
        """One new token of any prompt."""
        index = int(event.request_id)
        detokenizer = self._detokenizers[index]
        if detokenizer is None:
            self._held[index] += f"{event.token_id} "
        else:
            self._held[index] += detokenizer.add(event.token_id)
        self._flush()

    def finish(self, completion: Completion) -> None:
        """One prompt is complete: its line ends."""
        index = int(completion.request_id)
        detokenizer = self._detokenizers[index]
        self._held[index] += (detokenizer.finish() if detokenizer is not None else "") + "\n"
        self._is_done[index] = True
        self._flush()

    def _flush(self) -> None:
        while self._current < len(self._held):
            print(self._held[self._current], end="", flush=True)
            self._held[self._current] = ""
            if not self._is_done[self._current]:
                return
            self._current += 1
