"""`shallowest-first`: what has run the fewest loops goes first, so that all advance together."""

from ..items import ScheduledItem
from ..view import View
from .mixing import ordering_policy


def key(_view: View, item: ScheduledItem) -> int:
    """Fewest loops behind it come first."""
    return item.known_depth


SHALLOWEST_FIRST = ordering_policy("shallowest-first", key)
