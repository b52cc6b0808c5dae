"""How many loops an item still needs, by how much one may know of its exit.

A prompt item always runs every loop, so all of them agree about it. A pass that is about to run
counts: the answer is at least 1.
"""

from ..exits import last_loop
from ..items import ItemKind, ScheduledItem
from ..view import View


def remaining_loops(view: View, item: ScheduledItem) -> int:
    """By the depth alone: what is left of max_loops, as if nothing left the loops early."""
    last = view.num_planes if item.kind is ItemKind.PROMPT else item.request.exit_rule.max_loops
    return last - item.known_depth


def remaining_loops_ahead(view: View, item: ScheduledItem) -> int:
    """With a look one loop ahead: 1 where the exit after the next loop is settled.

    That is what a look-ahead head knows once the row has run a loop. A recorded trace is looked at
    no further than that, so a replay schedules like the run that it was recorded from. For the rest
    max_loops is expected.
    """
    remaining = remaining_loops(view, item)
    if item.kind is ItemKind.PROMPT:
        return remaining
    is_next = item.known_depth > 0 and _traced_loops(item) == 1
    return 1 if is_next or item.is_exit_pending else remaining


def remaining_loops_known(view: View, item: ScheduledItem) -> int:
    """With all knowledge there is: exact for a traced token, and one loop ahead for others."""
    traced = _traced_loops(item) if item.kind is ItemKind.DECODE else None
    return remaining_loops_ahead(view, item) if traced is None else traced


def _traced_loops(item: ScheduledItem) -> int | None:
    """Loops that a trace leaves a decode row; None without one."""
    rule = item.request.exit_rule
    if not rule.trace:
        return None
    assert item.output_index is not None, "only a policy that declares needs_depths may ask"
    return last_loop(rule, item.output_index) - item.known_depth
