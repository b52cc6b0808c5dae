"""The kinds of launch, as scheduler and simulator know them; the only place here that tells them
apart.

A launch runs a program, and behind it the `head` where a row may finish. This is the half of a
program that needs no device: which rows it has and how they are padded, and whose cost it shares.
The other half, which packs it and runs it, is registered under the same kind in
`looped.programs.registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .buckets import (
    Ladder,
    bucket_for,
    head_ladder,
    prefill_ladder,
    prefill_pads_no_more,
    recurrent_ladder,
    score_ladder,
)
from .items import Batch, ScheduledItem

if TYPE_CHECKING:
    from .config import SchedulerConfig
    from .policies import Policy


@dataclass(frozen=True, kw_only=True, slots=True)
class RowLimits:
    """The most rows of each sort that a closed set of requests brings into one launch."""

    num_seqs: int
    """Requests at once: decode rows, or rows of the LM head."""
    num_prompt_rows: int
    """Prompt rows, with one item a request."""
    num_window_rows: int
    """Prompt rows, with as many items a request as may be under way."""
    has_scores: bool
    """Whether any prompt is scored."""


class LaunchKind(ABC):
    """One kind of launch, or of program. There is one object of each, compared by identity."""

    RECURRENT: ClassVar[LaunchKind]
    """One pass over rows of any kind at any depth."""
    PREFILL: ClassVar[LaunchKind]
    """All P passes over prompt rows, from depth 0."""
    SCORE: ClassVar[LaunchKind]
    """LM head at the rows of one prompt item, for the log-probabilities of its tokens."""
    HEAD: ClassVar[LaunchKind]
    """LM head and sampling, one row a request: a program that follows a launch of another kind,
    never a launch of its own."""

    name: ClassVar[str]
    """In upper case; logs, cost tables and profiles have it in lower case."""
    runs_layers: ClassVar[bool] = False
    """Whether it is a pass, or several; the others run the LM head."""
    carries_decode: ClassVar[bool] = False
    """Whether decode rows run their loops in it, with prompt rows behind them."""
    brings_scores: ClassVar[bool] = False
    """Whether it brings log-probabilities of a prompt's tokens."""
    is_launched: ClassVar[bool] = True
    """Whether launches are called after it; the others only follow one."""

    @property
    def stand_in(self) -> LaunchKind:
        """Whose overhead it has in a cost table that does not name it: another kind's, or its
        own."""
        return self

    def called_kind(self, num_calls: int) -> LaunchKind:
        """The kind of the executable that is called so many times for one launch."""
        return self

    @abstractmethod
    def ladder(
        self, config: SchedulerConfig, policy: Policy, *, is_deterministic: bool
    ) -> Ladder | None:
        """Its row buckets; None if it is never called. A deterministic engine has the last."""

    @abstractmethod
    def most_rows(self, limits: RowLimits) -> int:
        """The most rows that it can have; 0 if it cannot occur."""

    def is_launched_with(self, num_rows: int, config: SchedulerConfig) -> bool:
        """Whether so many rows, of those that it can have, are ever launched so."""
        return True

    def __repr__(self) -> str:
        return f"LaunchKind.{self.name}"

    def __reduce__(self) -> tuple[Callable[[str], LaunchKind], tuple[str]]:
        """Copies, deep and pickled ones too, are the same object."""
        return launch_kind, (self.name.lower(),)


class _Recurrent(LaunchKind):
    name = "RECURRENT"
    runs_layers = True
    carries_decode = True

    def ladder(self, config: SchedulerConfig, policy: Policy, *, is_deterministic: bool) -> Ladder:
        return recurrent_ladder(config.budget, config.chunk_size, config.max_num_seqs)

    def most_rows(self, limits: RowLimits) -> int:
        return limits.num_window_rows + limits.num_seqs


class _Prefill(LaunchKind):
    name = "PREFILL"
    runs_layers = True

    @property
    def stand_in(self) -> LaunchKind:
        return LaunchKind.RECURRENT

    def called_kind(self, num_calls: int) -> LaunchKind:
        return LaunchKind.RECURRENT if num_calls > 1 else self

    def ladder(
        self, config: SchedulerConfig, policy: Policy, *, is_deterministic: bool
    ) -> Ladder | None:
        if is_deterministic or not config.needs_prefill_launches(policy):
            return None
        return prefill_ladder(config.budget)

    def most_rows(self, limits: RowLimits) -> int:
        return limits.num_prompt_rows

    def is_launched_with(self, num_rows: int, config: SchedulerConfig) -> bool:
        return config.chosen_policy.runs_all_depths or prefill_pads_no_more(
            num_rows, config.budget, config.chunk_size, config.max_num_seqs
        )


class _Head(LaunchKind):
    name = "HEAD"
    is_launched = False

    def ladder(self, config: SchedulerConfig, policy: Policy, *, is_deterministic: bool) -> Ladder:
        return head_ladder(config.max_num_seqs)

    def most_rows(self, limits: RowLimits) -> int:
        return limits.num_seqs


class _Score(LaunchKind):
    name = "SCORE"
    brings_scores = True

    @property
    def stand_in(self) -> LaunchKind:
        return LaunchKind.HEAD

    def ladder(self, config: SchedulerConfig, policy: Policy, *, is_deterministic: bool) -> Ladder:
        # A deterministic engine's bucket must not depend on the chunk.
        return score_ladder(config.budget if is_deterministic else config.chunk_size)

    def most_rows(self, limits: RowLimits) -> int:
        return int(limits.has_scores)


LaunchKind.RECURRENT = _Recurrent()
LaunchKind.PREFILL = _Prefill()
LaunchKind.SCORE = _Score()
LaunchKind.HEAD = _Head()

PROGRAM_KINDS = (LaunchKind.RECURRENT, LaunchKind.PREFILL, LaunchKind.SCORE, LaunchKind.HEAD)
"""All of them."""
LAUNCH_KINDS = tuple(kind for kind in PROGRAM_KINDS if kind.is_launched)
"""Those that launches have."""

_BY_NAME = {kind.name.lower(): kind for kind in PROGRAM_KINDS}


def launch_kind(name: str) -> LaunchKind:
    """Return the kind of that name, in lower case; KeyError if there is none."""
    return _BY_NAME[name]


def pass_batch(items: tuple[ScheduledItem, ...], num_passes: int = 1) -> Batch:
    """Return a launch that runs items through so many passes over the layers."""
    kind = LaunchKind.PREFILL if num_passes > 1 else LaunchKind.RECURRENT
    return Batch(kind, items, num_passes)


def score_batch(item: ScheduledItem) -> Batch:
    """Return a launch that scores the rows of a prompt item."""
    return Batch(LaunchKind.SCORE, (item,))


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one executable that a launch is made of."""

    kind: LaunchKind
    """Of the executable."""
    bucket: int
    """Its rows, padding included."""
    num_calls: int
    """One; or one a pass."""


def calls_of(batch: Batch, ladders: Mapping[LaunchKind, Ladder]) -> Calls:
    """Return how a launch is run by an engine with these row buckets.

    A kind of several passes that has none, as in a deterministic engine, runs as calls of the
    single pass, so that a row's arithmetic never depends on the policy.
    """
    num_calls = 1 if batch.launch in ladders else batch.num_passes
    kind = batch.launch.called_kind(num_calls)
    return Calls(kind, bucket_for(ladders[kind], batch.num_rows), num_calls)


def head_bucket(batch: Batch, ladders: Mapping[LaunchKind, Ladder]) -> int:
    """Return the rows of the head that follows a launch, padding included; 0 without one."""
    num_rows = len(batch.head_items)
    return bucket_for(ladders[LaunchKind.HEAD], num_rows) if num_rows else 0
