"""Loops that decode tokens took: how many each, on average, and what was saved.

The first token of an answer is no decode token: it comes out of the prompt, which runs every loop,
under any exit rule.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from looped.engine.outputs import Completion

FULL_DEPTH = 1.0
"""The threshold at which no token leaves early."""


@dataclass(frozen=True, kw_only=True)
class LoopUse:
    """How many decode tokens left after each loop."""

    counts: tuple[int, ...]
    """Decode tokens that left after loop 1, 2, … P."""

    @classmethod
    def of(cls, completions: Iterable[Completion], num_loops: int) -> "LoopUse":
        """Counts every token but the first of each completion."""
        found = Counter(depth for done in completions for depth in done.exit_depths[1:])
        return cls(counts=tuple(found[loop] for loop in range(1, num_loops + 1)))

    @property
    def num_tokens(self) -> int:
        """Decode tokens in all."""
        return sum(self.counts)

    @property
    def num_loops(self) -> int:
        """Loops that they took together."""
        return sum(loop * count for loop, count in enumerate(self.counts, 1))

    @property
    def mean(self) -> float | None:
        """Loops of a token on average; None of no token."""
        return self.num_loops / self.num_tokens if self.num_tokens else None

    @property
    def saved(self) -> float | None:
        """Share of loops that were not run, 1 - mean / P; None of no token."""
        return None if self.mean is None else 1 - self.mean / len(self.counts)

    def to_json(self) -> dict[str, Any]:
        return {
            "counts": list(self.counts),
            "num_tokens": self.num_tokens,
            "mean": self.mean,
            "saved": self.saved,
        }


def exits_in_words(threshold: float) -> str:
    """When tokens may leave."""
    return "every loop" if threshold == FULL_DEPTH else f"threshold {threshold:g}"
