"""Two policies on the same seeds: differences and ratios by pair, with how sure they are.

Every seed gives both the same requests, arrivals and depths, so what varies between seeds mostly
cancels in a pair. Intervals are Student's, at 95 %, over the seeds.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, inf, log, sqrt
from statistics import fmean, stdev
from typing import Any

from looped.measure.statistics import Numbers

T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""
NORMAL_QUANTILE = 1.96
"""For more degrees of freedom: 4 % too small at 31, less beyond."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over pairs and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Unbounded for a single value."""
        mean = fmean(values)
        if len(values) < 2:
            return cls(mean, -inf, inf)
        degrees = len(values) - 1
        quantile = T_QUANTILES[degrees - 1] if degrees <= len(T_QUANTILES) else NORMAL_QUANTILE
        half = quantile * stdev(values) / sqrt(len(values))
        return cls(mean, mean - half, mean + half)

    def to_json(self) -> dict[str, float | None]:
        """Without infinities, which JSON has no word for."""
        return {
            name: None if value in (inf, -inf) else value for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class PairedNumber:
    """One number of a summary, of a policy beside the baseline."""

    difference: Interval
    """Policy - baseline, in the number's unit."""
    ratio: Interval | None
    """Policy / baseline: the geometric mean, and the interval of its logarithm turned back. None
    where a value is not above 0."""
    num_pairs: int

    def to_json(self) -> dict[str, Any]:
        return {
            "difference": self.difference.to_json(),
            "ratio": None if self.ratio is None else self.ratio.to_json(),
            "num_pairs": self.num_pairs,
        }


def paired_numbers(runs: Sequence[Numbers], baseline: Sequence[Numbers]) -> dict[str, PairedNumber]:
    """Compares run i with run i of the baseline, which had the same seed.

    A number that either run of a pair lacks is left out of that pair, and altogether if no pair has
    it.
    """
    compared = {}
    for name in runs[0] if runs else ():
        pairs = [
            (ours, theirs)
            for one, other in zip(runs, baseline, strict=True)
            if (ours := one[name]) is not None and (theirs := other[name]) is not None
        ]
        if pairs:
            compared[name] = PairedNumber(
                Interval.of([ours - theirs for ours, theirs in pairs]), _ratio(pairs), len(pairs)
            )
    return compared


def _ratio(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    if any(ours <= 0 or theirs <= 0 for ours, theirs in pairs):
        return None
    logs = Interval.of([log(ours / theirs) for ours, theirs in pairs])
    return Interval(exp(logs.mean), exp(logs.low), exp(logs.high))
