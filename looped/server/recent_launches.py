"""The last launches and the token rate, for the status page."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from looped.engine.records import LaunchRecord

LAUNCHES_KEPT = 200
RATE_SECONDS = 10.0
"""Tokens per second are counted over so long."""


class RecentLaunches:
    """Remembers what the page shows; times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._launches: deque[tuple[int, float, LaunchRecord]] = deque(maxlen=LAUNCHES_KEPT)
        self._num_added = 0
        self._tokens: deque[tuple[float, int]] = deque()
        self._num_tokens = 0

    def add(self, records: Sequence[LaunchRecord], *, num_tokens: int, now: float) -> None:
        """One step: the launches that were applied in it, and the tokens that they brought."""
        for record in records:
            self._launches.append((self._num_added, now, record))
            self._num_added += 1
        if num_tokens:
            self._tokens.append((now, num_tokens))
            self._num_tokens += num_tokens
            self._drop_old(now)

    def token_rate(self, now: float) -> float:
        """Tokens per second, lately."""
        self._drop_old(now)
        return self._num_tokens / RATE_SECONDS

    def since(self, number: int) -> list[dict[str, Any]]:
        """Launches that were added as `number` or later, the oldest first; as JSON."""
        return [
            {
                "number": added,
                "time": now,
                "kind": record.kind.name.lower(),
                "bucket": record.bucket,
                "num_rows": record.num_rows,
                "num_passes": record.num_passes,
                "head": None if record.head is None else record.head.form,
                "items": [
                    {
                        "slot": item.slot,
                        "kind": item.kind.name.lower(),
                        "depth": item.depth,
                        "num_rows": item.num_rows,
                        "status": None if item.status is None else item.status.name.lower(),
                    }
                    for item in record.items
                ],
            }
            for added, now, record in self._launches
            if added >= number
        ]

    def _drop_old(self, now: float) -> None:
        while self._tokens and self._tokens[0][0] < now - RATE_SECONDS:
            self._num_tokens -= self._tokens.popleft()[1]
