"""A closed loop: so many requests are under way at any time, and the next comes when one ends.

Like a workload of prompts that interfere, it follows from numbers and a seed, and it is played by
progress alone: at any speed, the same requests come in the same order.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from looped.errors import UsageError
from looped.measure.arrivals import random_token_ids

from ..driving import Target
from ..workload import WorkItem

REQUEST = "request"
"""Kind of its requests: an id is this, a dash and a number."""
SHORT_OUTPUT = 8
"""Tokens of a request that only warms up."""


@dataclass(frozen=True, kw_only=True)
class ClosedLoop:
    """Requests of one length, at one exit threshold."""

    num_requests: int
    concurrency: int
    """Requests that are under way at any time, until too few are left."""
    prompt_tokens: int
    output_tokens: int
    """Emitted exactly: the end of sequence is ignored."""
    vocab_size: int
    exit_threshold: float = 1.0
    """At which tokens decide their own exits; 1 runs every loop."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "concurrency", "prompt_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.exit_threshold <= 1:
            raise UsageError(f"exit_threshold must be in 0 to 1, got {self.exit_threshold}")
        if self.num_requests < self.concurrency:
            raise UsageError(
                f"num_requests must be at least the concurrency: {self.num_requests} < "
                f"{self.concurrency}; try --num-requests {2 * self.concurrency}"
            )

    @property
    def items(self) -> list[WorkItem]:
        """All requests, in the order in which they come; prompts do not depend on the threshold."""
        return [
            WorkItem(
                request_id=(request_id := f"{REQUEST}-{index}"),
                prompt_token_ids=random_token_ids(
                    self.seed, request_id, self.prompt_tokens, self.vocab_size
                ),
                max_tokens=self.output_tokens,
                trace=(),
                exit_threshold=self.exit_threshold,
            )
            for index in range(self.num_requests)
        ]

    def at(self, exit_threshold: float) -> Self:
        """The same requests at another threshold."""
        return replace(self, exit_threshold=exit_threshold)

    def shortened(self) -> Self:
        """One more request than run at once, with few tokens: to warm up with."""
        return replace(
            self,
            num_requests=min(self.num_requests, self.concurrency + 1),
            output_tokens=min(self.output_tokens, SHORT_OUTPUT),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def drive_closed_loop(target: Target, loop: ClosedLoop) -> None:
    """Serves all requests; a request's place is taken as soon as its last token is visible."""
    waiting = iter(loop.items)
    num_left: dict[str, int] = {}

    def add_next() -> None:
        if (item := next(waiting, None)) is not None:
            num_left[item.request_id] = item.max_tokens
            target.add_request(item)

    for _ in range(loop.concurrency):
        add_next()
    while target.has_unfinished_requests():
        for request_id in target.step():
            num_left[request_id] -= 1
            if not num_left[request_id]:
                add_next()
