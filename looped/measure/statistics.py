"""Percentiles and quartiles, over values that are pooled first: percentiles are never averaged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_VALUES_FOR_P99 = 1000
"""A 99th percentile of fewer values is the word of a handful, and is not given."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of them lie, linear between the two nearest.

    With the values sorted as v[0..n-1] and h = (n - 1) * percent / 100:
    v[floor(h)] + (h - floor(h)) * (v[floor(h) + 1] - v[floor(h)]).

    Raises:
        ValueError: no values, or a percentage outside 0 to 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"expected values and a percentage, got {len(values)} and {percent}")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Latencies:
    """Pooled latencies of one arm, seconds."""

    count: int
    p50: float
    p95: float
    p99: float | None
    """None where fewer than 1,000 values were pooled."""
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Latencies | None":
        """None for no values."""
        if not values:
            return None
        return cls(
            count=len(values),
            p50=percentile(values, 50),
            p95=percentile(values, 95),
            p99=percentile(values, 99) if len(values) >= MIN_VALUES_FOR_P99 else None,
            largest=max(values),
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of one number over runs or pairs."""

    median: float
    first_quartile: float
    third_quartile: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None for no values."""
        if not values:
            return None
        median, first, third = (percentile(values, percent) for percent in (50, 25, 75))
        return cls(median, first, third, len(values))


Numbers = Mapping[str, float | None]
"""Metrics of one run, by name; None where it has no such thing."""


def spreads_of(runs: Sequence[Numbers]) -> dict[str, Spread]:
    """Spread of every metric over the runs that have it."""
    spreads = {}
    for name in runs[0] if runs else ():
        values = [value for numbers in runs if (value := numbers[name]) is not None]
        if spread := Spread.of(values):
            spreads[name] = spread
    return spreads


def paired_ratios(pairs: Sequence[tuple[Numbers, Numbers]]) -> dict[str, Spread]:
    """Spread of every metric over pairs of first / second.

    A pair without one of the two is left out, and so is one with nothing positive below: a ratio to
    a difference that noise has turned negative means nothing.
    """
    spreads = {}
    for name in pairs[0][0] if pairs else ():
        values = []
        for first, second in pairs:
            above, below = first[name], second[name]
            if above is not None and below is not None and below > 0:
                values.append(above / below)
        if spread := Spread.of(values):
            spreads[name] = spread
    return spreads
