"""What a server's /metrics adds to what its client sees, where it is one of looped's."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import isinf
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "looped_"
COUNTED = "_total"
QUEUE = f"{PREFIX}queue_seconds"
"""Histogram of the time from a request's arrival to the first launch of a sample of it."""


@dataclass(frozen=True)
class MetricsPage:
    """The numbers of one look at the page."""

    values: dict[str, float] = field(default_factory=dict)
    """Counters and gauges by name, without prefix, summed over their labels."""
    queue_counts: dict[float, float] = field(default_factory=dict)
    """Samples that waited for at most so many seconds, by these; empty where nobody counts."""

    @classmethod
    def parse(cls, page: str) -> Self:
        """Reads Prometheus's text format; other servers' names are left out. ValueError."""
        values: dict[str, float] = defaultdict(float)
        queue_counts: dict[float, float] = {}
        for family in text_string_to_metric_families(page):
            if family.type in ("counter", "gauge"):
                for sample in family.samples:
                    if sample.name.startswith(PREFIX) and not sample.name.endswith("_created"):
                        values[sample.name.removeprefix(PREFIX)] += sample.value
            elif family.name == QUEUE:
                for sample in family.samples:
                    if sample.name.endswith("_bucket"):
                        queue_counts[float(sample.labels["le"])] = sample.value
        return cls(dict(values), queue_counts)

    @property
    def load(self) -> float:
        """Requests that wait or run."""
        return self.values.get("requests_waiting", 0) + self.values.get("requests_running", 0)

    def counted_since(self, before: Self) -> dict[str, int]:
        """By how much every counter rose; names lose their `_total`."""
        return {
            name.removesuffix(COUNTED): round(value - before.values.get(name, 0.0))
            for name, value in self.values.items()
            if name.endswith(COUNTED)
        }

    def median_queue_since(self, before: Self) -> float | None:
        """Median of the seconds in the queue, of samples that left it; None without any."""
        return median_of_counts(
            {
                bound: count - before.queue_counts.get(bound, 0.0)
                for bound, count in self.queue_counts.items()
            }
        )


def median_of_counts(counts: Mapping[float, float]) -> float | None:
    """The median of values of which a histogram is known, linear within its bucket.

    Args:
        counts: how many values are at most as large, by the bucket's upper bound, infinity among
            them. A median that lies above the largest other bound is given as that bound.
    """
    ordered = [(0.0, 0.0), *sorted(counts.items())]
    half = ordered[-1][1] / 2
    for (lower, below), (upper, reached) in pairwise(ordered):
        if reached > below and reached >= half:
            return (
                lower
                if isinf(upper)
                else lower + (upper - lower) * (half - below) / (reached - below)
            )
    return None
