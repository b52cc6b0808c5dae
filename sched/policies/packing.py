"""Filling a launch up to its budget."""

from ..items import ScheduledItem


def pack_whole(items: tuple[ScheduledItem, ...], num_rows: int) -> tuple[ScheduledItem, ...]:
    """Return the first items that fit into `num_rows`, stopping at the one that does not.

    Stopping rather than skipping keeps the order: a large item is never overtaken for ever.
    """
    for index, item in enumerate(items):
        num_rows -= item.count
        if num_rows < 0:
            return items[:index]
    return items
