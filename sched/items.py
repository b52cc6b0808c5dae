"""Units of work: the chunk of a prompt under way, a scheduled item, and a batch of items.

A batch is one launch. A recurrent batch lists its decode items first, then the rows of each
prompt item as one contiguous run; every item stands at its own depth. What an item says about
its range and depth is authoritative for the runner. A decode row whose outcome in launches under
way is not certain has no depth here: only the device knows it.
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
    awaits_score: bool = False
    """Whether its rows have to be scored before anything else happens to it."""

    @property
    def token_end(self) -> int:
        """Position after its last token."""
        return self.token_start + self.token_count


@dataclass(eq=False, slots=True)
class ScheduledItem:
    """One item as it can be launched now. Policies choose among these.

    Not to be written to; frozen it would take four times as long to make, and one is made for each
    row of each launch.
    """

    request: Request
    """Whose item it is."""
    kind: ItemKind
    """PROMPT or DECODE; the only thing that runner and scheduler dispatch on in a launch."""
    depth: int | None
    """Depth that runs next, 0..P-1; in a score the last depth that ran. None where what launches
    under way decide makes it uncertain, of DECODE items alone."""
    first_position: int
    """Position of its first row; of an uncertain one the furthest possible."""
    count: int
    """Its rows, at consecutive positions."""
    prompt_item: PromptItem | None = None
    """The chunk behind a PROMPT item."""
    is_single_pass: bool = False
    """Whether it may run one depth a launch only: it is scored after each, or follows an item of
    its prompt that is under way, whose KV it needs in every plane that it runs."""
    output_index: int | None = 0
    """Index of the output token that its row leads to; None where it is uncertain. DECODE
    items."""
    is_exit_pending: bool | None = False
    """Whether it leaves after this pass, as a look ahead has said; None where that is uncertain."""
    passes_to_head: int = 0
    """Passes after which its row may need the LM head; 0: in no launch that it can be in next."""

    @property
    def known_depth(self) -> int:
        """The depth, where it is certain."""
        assert self.depth is not None, "only a policy that declares needs_depths may ask"
        return self.depth


@dataclass(frozen=True, eq=False)
class Batch:
    """One launch. Compared by identity: each is applied, or failed, exactly once."""

    launch: LaunchKind
    """The compiled call."""
    items: tuple[ScheduledItem, ...]
    """Decode items, then prompt items, of which a request may have several; in a score one item."""
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
    def head_items(self) -> tuple[ScheduledItem, ...]:
        """Items whose row may finish in this launch, one a request; a head follows for them."""
        return tuple([item for item in self.items if item.passes_to_head == self.num_passes])

    @cached_property
    def is_read(self) -> bool:
        """Whether the launch brings anything that the host reads."""
        return self.launch.brings_scores or bool(self.head_items)
