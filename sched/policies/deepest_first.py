"""`deepest-first`: what has run the most loops goes first, so that what was begun ends soon."""

from ..items import ScheduledItem
from ..view import View
from .mixing import ordering_policy


def key(_view: View, item: ScheduledItem) -> int:
    """Most loops behind it come first."""
    return -item.known_depth


DEEPEST_FIRST = ordering_policy("deepest-first", key)
