"""Requests that are due and not over: whether they become more and more while a load lasts."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

BACKLOG_GROWTH, BACKLOG_SLACK = 1.5, 2.0
"""A backlog is bounded if its mean over the last quarter of the arrivals is at most so many times
that over the second quarter, plus so many requests. One that grows steadily has 7/3 times."""
MOST_LEFT = 0.1
"""And if, of the requests that come between the middles of those quarters, it grows by at most this
share, plus the same few. Where many are served at once, the growth alone lets a load pass that is
half as much again as what is served."""
FEWEST_FOR_GROWTH = 16
"""Of fewer arrivals a quarter says nothing, and the backlog counts as bounded."""


class Stay(Protocol):
    """A request's time in a server, seconds; served or simulated."""

    @property
    def arrival(self) -> float:
        """When it was due."""

    @property
    def ended(self) -> float:
        """When it was over."""


def backlogs(requests: Sequence[Stay]) -> list[int]:
    """Requests that were due and not over, at every arrival, that one included."""
    ends = sorted(request.ended for request in requests)
    arrivals = sorted(request.arrival for request in requests)
    return [index + 1 - bisect_right(ends, arrival) for index, arrival in enumerate(arrivals)]


def backlog_growth(requests: Sequence[Stay]) -> tuple[float, float] | None:
    """Mean backlog over the second quarter of the arrivals, and over the last; None for too few."""
    if len(requests) < FEWEST_FOR_GROWTH:
        return None
    counts, quarter = backlogs(requests), len(requests) // 4
    return sum(counts[quarter : 2 * quarter]) / quarter, sum(counts[-quarter:]) / quarter


def is_bounded(growth: tuple[float, float] | None, num_requests: float) -> bool:
    """Whether a backlog stays where it is, as far as a run can tell.

    Args:
        growth: as `backlog_growth` has it, or means of several runs.
        num_requests: of a run; half of them come between the middles of the two quarters.
    """
    if growth is None:
        return True
    first, last = growth
    most_left = MOST_LEFT * num_requests / 2 + BACKLOG_SLACK
    return last - first <= most_left and last <= BACKLOG_GROWTH * first + BACKLOG_SLACK
