"""What a launch has to do, as far as its cost depends on it: rows, passes and keys.

The head that follows where a row may finish is a work of its own, with rows alone. A policy that
weighs launches and a simulator that times them describe a launch by the same numbers, and ask the
same `LaunchCosts` for its seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..items import ItemKind, ScheduledItem
from ..launches import LaunchKind


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """The passes of a launch, its scores, or the head behind it, in numbers."""

    kind: LaunchKind
    """The program."""
    bucket: int
    """Rows of the executable, padding included."""
    num_rows: int
    """Real rows among them."""
    num_passes: int
    """Passes over the layers, of all calls together; 0 under an LM head."""
    decode_keys: int
    """Keys that decode rows see, summed over the rows, in one pass; 0 under an LM head."""
    prompt_keys: int
    """Keys that prompt rows see, summed over the rows, in one pass; 0 under an LM head."""
    num_calls: int = 1
    """Calls of the executable; one a pass where a deterministic engine runs several."""
    form: str = ""
    """Form of a head, such as `sampled_copies`; empty: `greedy`."""

    @classmethod
    def of(
        cls,
        items: Iterable[ScheduledItem],
        *,
        kind: LaunchKind,
        num_passes: int,
        bucket: int,
        num_calls: int = 1,
    ) -> LaunchWork:
        """Count the work of `items` in one launch of `kind`, padded to `bucket`.

        A row at position n sees n + 1 keys; the rows of an item lie at consecutive positions.
        """
        num_rows = decode_keys = prompt_keys = 0
        for item in items:
            num_rows += item.count
            if kind.runs_layers:
                num_keys = item.count * item.first_position + item.count * (item.count + 1) // 2
                if item.kind is ItemKind.DECODE:
                    decode_keys += num_keys
                else:
                    prompt_keys += num_keys
        passes = num_passes if kind.runs_layers else 0
        return cls(kind, bucket, num_rows, passes, decode_keys, prompt_keys, num_calls)

    @classmethod
    def head(cls, bucket: int, num_rows: int, form: str = "") -> LaunchWork:
        """The head behind a launch, for rows that may finish in it."""
        return cls(LaunchKind.HEAD, bucket, num_rows, 0, decode_keys=0, prompt_keys=0, form=form)


class LaunchCosts(Protocol):
    """Seconds of a launch, before it runs: a cost model."""

    def seconds(self, work: LaunchWork) -> float:
        """Return how long the device will take for the work."""
        ...
