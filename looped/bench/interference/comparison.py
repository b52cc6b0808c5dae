"""From runs to a result: arms side by side, and medians of paired ratios with their quartiles."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from looped.measure.statistics import Latencies, Spread, paired_ratios, spreads_of
from looped.measure.violation import Violation

from ..arms import ARMS, BASELINE, COMPARISONS
from ..runs import PROMPT, Run
from ..workload import BYSTANDER
from .arm_metrics import measure
from .validity import check_run, check_runs, num_parted_exits, num_parted_requests


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """One arm over all its valid runs."""

    num_runs: int
    metrics: dict[str, Spread]
    """Median and quartiles over the runs; percentiles in them are each of one run."""
    window_itl: Latencies | None
    """Gaps in windows, of all runs pooled."""
    itl: Latencies | None
    """Gaps that begin in the period, of all runs pooled."""
    ttft_prompt: Latencies | None
    ttft_bystander: Latencies | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One point of a sweep, measured."""

    violations: list[Violation]
    arms: dict[str, ArmSummary]
    ratios: dict[str, dict[str, Spread]]
    """`A2/A0` and so on: for every metric the spread, over pairs, of one arm's number divided by
    the other's in the same round of the same process."""
    pooled_p99_ratios: dict[str, float]
    """p99 of one arm's pooled gaps in windows / that of the other's; of D0, of all its gaps."""
    num_pairs: int
    num_parted_requests: int
    """Requests whose token ids differ between runs, which is allowed in bfloat16 alone."""
    num_parted_exits: int
    """Requests whose exit depths do, which is allowed there where every arm decides for itself."""

    @property
    def is_valid(self) -> bool:
        return not self.violations

    def to_json(self) -> dict[str, Any]:
        return {"is_valid": self.is_valid, **asdict(self)}


def compare(runs: Sequence[Run]) -> Comparison:
    """Judges and measures the runs of one point.

    A run that breaks a rule is left out, and so is its round where D0 is the one that does: there
    is nothing to measure against. Percentiles are of pooled gaps, never averages of percentiles.
    """
    valid = [run for run in runs if not check_run(run)]
    rounds: dict[tuple[int, int], dict[str, Run]] = defaultdict(dict)
    for run in valid:
        rounds[run.place.process, run.place.round][run.arm.name] = run
    rounds = {place: arms for place, arms in rounds.items() if BASELINE in arms}
    measured = {
        place: {name: measure(run, arms[BASELINE]) for name, run in arms.items()}
        for place, arms in rounds.items()
    }
    summaries = {}
    for name in ARMS:
        members = [arms[name] for arms in rounds.values() if name in arms]
        if members:
            summaries[name] = _summary(
                members, [numbers[name] for numbers in measured.values() if name in numbers]
            )
    ratios = {}
    for first, second in COMPARISONS:
        pairs = [
            (numbers[first], numbers[second])
            for numbers in measured.values()
            if first in numbers and second in numbers
        ]
        if pairs:
            ratios[f"{first}/{second}"] = paired_ratios(pairs)
    return Comparison(
        violations=check_runs(runs),
        arms=summaries,
        ratios=ratios,
        pooled_p99_ratios=_pooled_p99_ratios(summaries),
        num_pairs=len(rounds),
        num_parted_requests=num_parted_requests(runs),
        num_parted_exits=num_parted_exits(runs),
    )


def _summary(runs: list[Run], numbers: list[dict[str, float | None]]) -> ArmSummary:
    return ArmSummary(
        num_runs=len(runs),
        metrics=spreads_of(numbers),
        window_itl=Latencies.of([gap.seconds for run in runs for gap in run.window_gaps]),
        itl=Latencies.of([gap.seconds for run in runs for gap in run.gaps]),
        ttft_prompt=Latencies.of(
            [latency for run in runs for latency in run.first_token_latencies(PROMPT)]
        ),
        ttft_bystander=Latencies.of(
            [latency for run in runs for latency in run.first_token_latencies(BYSTANDER)]
        ),
    )


def _pooled_p99_ratios(arms: dict[str, ArmSummary]) -> dict[str, float]:
    tails = {}
    for name, summary in arms.items():
        latencies = summary.itl if name == BASELINE else summary.window_itl
        if latencies is not None and latencies.p99 is not None:
            tails[name] = latencies.p99
    return {
        f"{first}/{second}": tails[first] / tails[second]
        for first, second in COMPARISONS
        if first in tails and second in tails
    }
