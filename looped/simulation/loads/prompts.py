"""Token ids of prompts that no model reads: what matters of them is which ones begin alike."""

from collections import defaultdict

from looped.engine.events import RequestEvent

VOCAB_SIZE = 1 << 16
"""Of made-up prompts."""


def prompt_of(
    index: int, num_tokens: int, *, num_shared: int = 0, vocab_size: int = VOCAB_SIZE
) -> tuple[int, ...]:
    """A prompt that shares its beginning, and no block behind it, with those of other indices.

    Args:
        index: of the request.
        num_tokens: length.
        num_shared: tokens that every prompt begins with, fewer than `num_tokens`.
        vocab_size: ids are below it; indices that are a multiple of it apart share a token more.
    """
    return (0,) * num_shared + _spelled(index + 1, num_tokens - num_shared, vocab_size)


class LoggedPrompts:
    """Token ids that share prefixes where recorded prompts did, as far as a log tells.

    A log has a key for every full block of a prompt, and nothing of the tokens behind the last one:
    they are taken to be of that prompt alone, and of its other samples. So the ids suit a prefix
    cache with blocks of any size; prompts that part inside a recorded block part at its start.

    Args:
        vocab_size: ids are below it.
        block_size: of the engine that wrote the log.
    """

    def __init__(self, vocab_size: int, block_size: int) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._children: dict[str, dict[str | int, int]] = defaultdict(dict)
        self._num_prompts = 0
        self._newest: dict[str, int] = {}
        """The prompt of each request id, which may come again with another."""

    def token_ids(self, event: RequestEvent) -> tuple[int, ...]:
        """A prompt of the recorded length. Siblings are numbered, and a block spells its number."""
        token_ids: list[int] = []
        parent = ""
        for key in event.prefix_keys:
            token_ids += self._block(parent, key, self._block_size)
            parent = key
        prompt = self._prompt(event)
        if rest := event.num_prompt_tokens - len(token_ids):
            token_ids += self._block(parent, prompt, rest)
        return tuple(token_ids)

    def _block(self, parent: str, key: str | int, num_tokens: int) -> tuple[int, ...]:
        siblings = self._children[parent]
        number = siblings.setdefault(key, len(siblings))
        return _spelled(number, num_tokens, self._vocab_size)

    def _prompt(self, event: RequestEvent) -> int:
        if event.num_earlier_samples == 0:
            self._newest[event.request_id] = self._num_prompts
            self._num_prompts += 1
        return self._newest[event.request_id]


def _spelled(number: int, num_tokens: int, vocab_size: int) -> tuple[int, ...]:
    """The digits of a number, lowest first, and zeros behind them."""
    digits: list[int] = []
    while number and len(digits) < num_tokens:
        number, digit = divmod(number, vocab_size)
        digits.append(digit)
    return (*digits, *(0,) * (num_tokens - len(digits)))
