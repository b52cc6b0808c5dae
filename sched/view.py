"""What a policy sees: an immutable picture of the work that could run now.

A decode row *rides*: it is in the view again while launches with it are under way, whose records
nobody has read. Where these leave its place uncertain, it has no depth and no output index there; a
policy that needs them declares `needs_depths`, and then every record is read first. A stage that
has just yielded an empty batch is *masked*: shown as empty, so that the policy turns to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from .buckets import prefill_pads_no_more
from .items import ScheduledItem
from .request import Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The state of the scheduler at one call of `choose` or `take`."""

    now: float
    """The caller's time: seconds in the engine and in a simulation."""
    num_planes: int
    """P, the loops of the model."""
    max_num_batched_tokens: int
    """Rows that a launch may have: the budget."""
    max_num_seqs: int
    """Requests that may be active at once."""
    max_decode_rows: int
    """Decode items that a launch may have."""
    prefill_interval: int
    """Prompt launches after which a ready decode item is due (alternating policies)."""
    prefill_chunk_size: int
    """Most rows of a prompt item."""
    prompt_shortcut: bool
    """Whether prompts may run several depths in a launch while no request is past its prompt."""
    num_prompt_launches: int
    """Launches of prompt items alone since the last launch with a decode item."""
    decode_items: tuple[ScheduledItem, ...]
    """Ready decode items, in admission order. Empty if RECURRENT is masked."""
    prompt_items: tuple[ScheduledItem, ...]
    """Ready prompt items, in admission order, those of a request in prompt order. Empty if PREFILL
    is masked."""
    num_past_prompt: int
    """Requests whose prompt has run, those whose last token is under way and those of a masked
    stage included."""
    num_waiting: int
    """Requests not admitted yet; 0 if PREFILL is masked, which they would enter."""
    num_active: int
    """Requests that hold a slot."""

    def shortcut_pays(self, num_rows: int) -> bool:
        """Whether the shortcut is on, and runs so many prompt rows in no larger bucket."""
        return self.prompt_shortcut and prefill_pads_no_more(
            num_rows, self.max_num_batched_tokens, self.prefill_chunk_size, self.max_num_seqs
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """What a policy takes for one launch."""

    candidates: tuple[ScheduledItem, ...]
    """Items of the view in launch order, decode items first. Empty: nothing of that stage."""
    num_passes: int = 1
    """Depths to run: 1, or all P for prompt items at depth 0."""


Choice = tuple[Stage, bool]
"""The stage to take from, and whether to admit waiting requests first."""
