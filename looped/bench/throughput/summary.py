"""From runs of a closed loop to a result: thresholds side by side, and ratios to threshold 1."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from looped.measure.flop_bound import ParameterCounts
from looped.measure.statistics import Latencies, Spread, paired_ratios, spreads_of
from looped.measure.violation import Violation

from .point import ThroughputPoint
from .rules import check_throughput_run, check_throughput_runs
from .runs import BASE_THRESHOLD, THROUGHPUT_METRICS, ThroughputRun


@dataclass(frozen=True, kw_only=True)
class ThresholdSummary:
    """One threshold over all its valid runs."""

    num_runs: int
    metrics: dict[str, Spread]
    """Median and quartiles over the runs; percentiles in them are each of one run."""
    ratios: dict[str, Spread]
    """For every metric the spread, over rounds, of its number divided by that at threshold 1."""
    ttft: Latencies | None
    """Of all runs pooled, as the two below."""
    tpot: Latencies | None
    itl: Latencies | None


@dataclass(frozen=True, kw_only=True)
class ThroughputResult:
    """One point, measured."""

    point: ThroughputPoint
    parameters: ParameterCounts
    violations: list[Violation]
    thresholds: dict[float, ThresholdSummary]
    num_rounds: int

    @property
    def is_valid(self) -> bool:
        return not self.violations

    def to_json(self) -> dict[str, Any]:
        values = asdict(self) | {"is_valid": self.is_valid}
        values["thresholds"] = {f"{name:g}": one for name, one in values["thresholds"].items()}
        return values


def summarise_point(point: ThroughputPoint, runs: Sequence[ThroughputRun]) -> ThroughputResult:
    """Judges and measures the runs of one point.

    A run that breaks a rule is left out, and so is its round where it is the one at threshold 1.
    """
    rounds: dict[int, dict[float, ThroughputRun]] = {}
    for run in runs:
        if not check_throughput_run(run):
            rounds.setdefault(run.place.round, {})[run.threshold] = run
    measured = [
        {
            threshold: _measure(run, by_threshold[BASE_THRESHOLD])
            for threshold, run in by_threshold.items()
        }
        for by_threshold in rounds.values()
        if BASE_THRESHOLD in by_threshold
    ]
    summaries = {}
    for threshold in point.thresholds:
        with_it = [numbers for numbers in measured if threshold in numbers]
        members = [
            by[threshold] for by in rounds.values() if {threshold, BASE_THRESHOLD} <= by.keys()
        ]
        if members:
            summaries[threshold] = ThresholdSummary(
                num_runs=len(members),
                metrics=spreads_of([numbers[threshold] for numbers in with_it]),
                ratios=paired_ratios(
                    [(numbers[threshold], numbers[BASE_THRESHOLD]) for numbers in with_it]
                ),
                ttft=Latencies.of(
                    [one for run in members for one in run.time_to_first_tokens(run.names)]
                ),
                tpot=Latencies.of(
                    [one for run in members for one in run.times_per_output_token(run.names)]
                ),
                itl=Latencies.of([gap.seconds for run in members for gap in run.gaps]),
            )
    return ThroughputResult(
        point=point,
        parameters=runs[0].parameters,
        violations=check_throughput_runs(runs, point.thresholds),
        thresholds=summaries,
        num_rounds=len(measured),
    )


def _measure(run: ThroughputRun, baseline: ThroughputRun) -> dict[str, float | None]:
    return {name: metric.measure(run, baseline) for name, metric in THROUGHPUT_METRICS.items()}
