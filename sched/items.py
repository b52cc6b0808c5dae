"""Units of work: the chunk of a prompt under way, a scheduled item, and a batch of items.

A batch is one launch. A recurrent batch lists its decode items first, then the rows of each
prompt item as one contiguous run; every item stands at its own depth. What an item says about
its range and depth is authoritative for the runner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .launches import LaunchKind
    from .request import Request
    from .states import PromptStateHandle


class ItemKind(Enum):
    """What the rows of an item are."""

    PROMPT = auto()
    DECODE = auto()


@dataclass(eq=False, slots=True)
class PromptItem:
    """A chunk of a request's prompt on its way through the depths."""

    token_start: int
    """Position of its first token."""
    token_count: int
    """Its tokens, fixed at creation: at most prefill_chunk_size, and at most what remains."""
    state: PromptStateHandle
    """Where the runner keeps its hidden rows between launches."""
    depth: int = 0
    """Next depth to run, 0..P-1; P while the last score is awaited."""
    embedded: bool = False
    """Whether its tokens have been embedded; its first pass does it."""
    awaits_score: bool = False
    """Whether its rows have to be scored before anything else happens to it."""

    @property
    def token_end(self) -> int:
        """Position after its last token."""
        return self.token_start + self.token_count


@dataclass(frozen=True, eq=False, slots=True)
class ScheduledItem:
    """One item as it can be launched now. Policies choose among these."""

    request: Request
    """Whose item it is."""
    kind: ItemKind
    """PROMPT or DECODE; the only thing that runner and scheduler dispatch on in a launch."""
    depth: int
    """Depth that runs next, 0..P-1. In a coda or a score: the last depth that ran."""
    first_position: int
    """Position of its first row."""
    count: int
    """Its rows, at consecutive positions."""
    prompt_item: PromptItem | None = None
    """The chunk behind a PROMPT item."""
    runs_gate: bool = False
    """Whether its row needs the gate in this pass."""
    is_single_pass: bool = False
    """Whether it may run one depth a launch only: it is scored after each, or follows an item of
    its prompt that is under way, whose KV it needs in every plane that it runs."""
    is_deciding: bool = False
    """Whether the host has to read its signal after this pass."""
    output_index: int = 0
    """Index of the output token that its row leads to. DECODE items."""
    exit_loop: int = 0
    """Loops run before this coda; 0 outside a coda. Below P, planes are to be completed."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One launch. Compared by identity: each is applied, or failed, exactly once."""

    launch: LaunchKind
    """The compiled call."""
    items: tuple[ScheduledItem, ...]
    """Decode items, then prompt items, of which a request may have several; in a coda one item a
    request, in a score one item."""
    num_passes: int = 1
    """Depths to run: 1 but for PREFILL."""

    @cached_property
    def num_rows(self) -> int:
        """Real rows of the launch."""
        return sum(item.count for item in self.items)

    @cached_property
    def num_decode(self) -> int:
        """Decode items; in a recurrent launch they are the first rows."""
        return sum(item.kind is ItemKind.DECODE for item in self.items)

    @cached_property
    def runs_gate(self) -> bool:
        """Whether the gate has to be computed."""
        return any(item.runs_gate for item in self.items)

    @cached_property
    def is_read(self) -> bool:
        """Whether the host reads the launch: LM heads, and passes with a deciding row."""
        return not self.launch.runs_layers or any(item.is_deciding for item in self.items)
