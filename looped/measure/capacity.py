"""The largest rate that a server sustains, by doubling and then bisecting."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Generic, Protocol, TypeVar

from looped.errors import UsageError

MOST_TRIALS = 24
"""Doublings, halvings and bisections together; whatever is known then is the answer."""


class Trial(Protocol):
    """What a measurement says about a rate."""

    @property
    def is_sustained(self) -> bool:
        """Whether the server kept up, with its objective met."""

    @property
    def is_limited_by_client(self) -> bool:
        """Whether the measurement itself failed; then it is not sustained either."""

    @property
    def is_hopeless(self) -> bool:
        """If it is not sustained: whether a lower rate could not help."""


T = TypeVar("T", bound=Trial)


@dataclass(frozen=True)
class Capacity(Generic[T]):
    """What a search has found."""

    rate: float | None
    """The largest rate that was sustained, requests per second; None if none was."""
    failed_rate: float | None
    """The smallest rate above it that was not; None if none was tried."""
    trials: list[tuple[float, T]]
    """Every rate that was tried and its result, in order."""

    @property
    def bounds(self) -> list[T]:
        """The trials that the answer rests on."""
        return [trial for rate, trial in self.trials if rate in (self.rate, self.failed_rate)]

    @property
    def is_limited_by_client(self) -> bool:
        """Whether the measurement, not the server, failed above the capacity: it may be larger."""
        return any(trial.is_limited_by_client for trial in self.bounds)

    @property
    def is_hopeless(self) -> bool:
        """Whether the search ended because a lower rate could not help."""
        return self.rate is None and self.trials[-1][1].is_hopeless


def find_capacity(
    measure: Callable[[float], T],
    *,
    start: float,
    lowest: float,
    precision: float,
    most_trials: int = MOST_TRIALS,
) -> Capacity[T]:
    """Searches between a rate that is sustained and one that is not.

    From the start on, rates are doubled while they are sustained, or halved while they are not and
    a lower one could help; then the geometric mean of the two bounds is tried until their ratio is
    at most the precision. Every rate is measured once, so that the answer is as certain as one run.

    Args:
        measure: runs a trial at a rate, in requests per second, and drains the server.
        start: the first rate.
        lowest: none below it is tried.
        precision: ratio, above 1, of the two bounds at which the search ends.
        most_trials: at which it ends in any case.

    Raises:
        UsageError: arguments out of range.
    """
    check_search(start, lowest, precision)
    trials: list[tuple[float, T]] = []
    low: float | None = None
    high: float | None = None
    rate = start
    while len(trials) < most_trials:
        trial = measure(rate)
        trials.append((rate, trial))
        if trial.is_sustained:
            low = rate
        else:
            high = rate
        if low is None:
            if trial.is_hopeless or rate / 2 < lowest:
                break
            rate = rate / 2
        elif high is None:
            rate = rate * 2
        elif high / low <= precision:
            break
        else:
            rate = sqrt(low * high)
    return Capacity(low, high, trials)


def check_search(start: float, lowest: float, precision: float) -> None:
    """UsageError for a search that has no beginning or no end."""
    if not 0 < lowest <= start < float("inf") or not 1 < precision < float("inf"):
        raise UsageError(
            "expected a start rate of at least the lowest one, which is above 0, and a precision "
            f"above 1 (a ratio of rates); got {start:g}, {lowest:g} and {precision:g}"
        )
