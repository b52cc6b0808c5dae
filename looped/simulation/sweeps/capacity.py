"""How much load a policy bears, found by simulating.

That is its rate in a full house, or the largest rate at which it meets an objective.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from statistics import fmean
from typing import Any

from looped.errors import UsageError
from looped.measure.backlog import FEWEST_FOR_GROWTH, backlog_growth, is_bounded
from looped.measure.capacity import Capacity, find_capacity
from looped.measure.statistics import MIN_VALUES_FOR_P99, Numbers
from looped.progress import progress_bars
from looped.record.timeline import Timeline
from looped.sched import SchedulerConfig

from ..coverage import UNNAMED
from ..loads.workload import Workload
from ..summary import UNITS
from .grid import Grid, Point, mean_numbers, workers

TIMES = tuple(name for name, unit in UNITS.items() if unit == "s")
"""Numbers that an objective can bound."""


@dataclass(frozen=True)
class Objective:
    """Bounds of times: each number of a run at most so many seconds, on average over the seeds."""

    bounds: Mapping[str, float]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> "Objective":
        """From `NUMBER=SECONDS` each, such as `itl_p99=0.05`; UsageError for anything else."""
        bounds: dict[str, float] = {}
        for text in texts:
            name, _, typed = text.partition("=")
            try:
                seconds = float(typed)
            except ValueError:
                seconds = 0.0
            if name not in TIMES or not seconds > 0:
                raise UsageError(
                    f"an objective is NUMBER=SECONDS, above 0 seconds, with one of "
                    f"{', '.join(TIMES)}; got {text!r}"
                )
            if name in bounds:
                raise UsageError(f"expected one bound of {name}, got {', '.join(texts)}")
            bounds[name] = seconds
        return cls(bounds)

    def check(self, workload: Workload) -> None:
        """Checks, before any run, that a workload has the values that the bounds are about.

        Raises:
            UsageError: it has too few for a number that is bounded.
        """
        requests = workload.requests
        num_gaps = sum(one.output_tokens - 1 for one in requests)
        for name in self.bounds:
            is_of_gaps = name.startswith("itl")
            what, count = ("gaps", num_gaps) if is_of_gaps else ("requests", len(requests))
            needed = MIN_VALUES_FOR_P99 if name.endswith("p99") else 1
            if count < needed:
                raise UsageError(
                    f"{name} needs at least {needed:,} {what} in every run, got {count:,}; "
                    "simulate more requests"
                )
        if len(requests) < FEWEST_FOR_GROWTH:
            raise UsageError(
                f"a capacity needs at least {FEWEST_FOR_GROWTH} requests, or nothing tells a queue "
                f"that grows; got {len(requests)}: simulate more requests"
            )

    def failed(self, numbers: Numbers) -> list[str]:
        """The numbers whose bounds do not hold.

        Raises:
            UsageError: a run has too few values for a number that is bounded.
        """
        failed = []
        for name, bound in self.bounds.items():
            value = numbers[name]
            if value is None:
                raise UsageError(
                    f"{name} needs at least 1,000 values in every run; simulate more requests"
                )
            if value > bound:
                failed.append(name)
        return failed


def full_house_rate(grid: Grid, point: Point) -> float:
    """Requests per second in a closed loop of max_num_seqs: what a load is a share of.

    Infinite on costs of nothing.

    Args:
        grid: workload, costs and seeds; a rate of the plan's own is left out.
        point: the policy and its options; its load is left aside.
    """
    grid = replace(grid, plan=replace(grid.plan, rate=None, burstiness=None))
    num_seqs = point.options.get("max_num_seqs", SchedulerConfig.max_num_seqs)
    full = Point(point.policy, point.options, concurrency=num_seqs)
    runs = [grid.run(full, seed) for seed in grid.seeds]
    rates = [rate for run in runs if (rate := run["requests_per_second"]) is not None]
    return fmean(rates) if rates else inf


@dataclass(frozen=True, slots=True)
class _Stay:
    """From a simulated request's arrival to its end."""

    arrival: float
    ended: float


def keeps_up(timelines: Sequence[Timeline]) -> bool:
    """Whether the backlog stayed where it was, as far as runs of the same load can tell.

    Its means over the runs have to be bounded, as `is_bounded` has it.

    Args:
        timelines: of runs that were drained; those of too few requests say nothing.
    """
    growths = []
    for timeline in timelines:
        stays = [
            _Stay(request.time, timeline.ends[name].time)
            for name, request in timeline.requests.items()
        ]
        growth = backlog_growth(stays)
        if growth is not None:
            growths.append(growth)
    if not growths:
        return True
    first, last = fmean(first for first, _ in growths), fmean(last for _, last in growths)
    return is_bounded((first, last), fmean(len(timeline.requests) for timeline in timelines))


@dataclass(frozen=True)
class SimulatedTrial:
    """A rate that was simulated."""

    numbers: Numbers
    """Means over the seeds."""
    is_bounded: bool
    """Whether the backlog stayed where it was."""
    failed_by: tuple[str, ...] = ()
    """What failed: `backlog`, the names of numbers whose bounds do not hold, or both."""
    is_limited_by_client: bool = False
    is_hopeless: bool = False

    @property
    def is_sustained(self) -> bool:
        """Whether nothing failed."""
        return not self.failed_by


@dataclass(frozen=True)
class PointCapacity:
    """The capacity of a point, and what it can do at all."""

    capacity: Capacity[SimulatedTrial]
    full_house_rate: float
    """Of the point, requests per second: without an objective, and with requests at hand always."""

    @property
    def columns(self) -> dict[str, Any]:
        """What a table has of it; `unnamed_launches` is of the capacity, or else what failed."""
        rate, failed_rate = self.capacity.rate, self.capacity.failed_rate
        trials = dict(self.capacity.trials)
        shown = failed_rate if rate is None else rate
        assert shown is not None  # one or the other was tried
        failed_by = () if failed_rate is None else trials[failed_rate].failed_by
        return {
            "capacity": rate,
            "failed_rate": failed_rate,
            "failed_by": ", ".join(failed_by) or None,
            "full_house_rate": self.full_house_rate if isfinite(self.full_house_rate) else None,
            "is_above_full_house": rate is not None and rate > self.full_house_rate,
            UNNAMED: trials[shown].numbers[UNNAMED],
        }


def capacity_of(
    grid: Grid, point: Point, objective: Objective, *, start: float, precision: float
) -> Capacity[SimulatedTrial]:
    """Searches the largest rate that meets the objective; every rate sees the same bursts.

    A rate must be kept up with, too: where requests wait for their turn, gaps and the like stay
    what they are at any rate; see `keeps_up`.

    Args:
        grid: workload, costs and seeds.
        point: the policy and its options; its rate is searched.
        objective: what a rate has to meet.
        start: the first rate, requests per second.
        precision: ratio of the two bounds at which the search ends.
    """

    def measure(rate: float) -> SimulatedTrial:
        at_rate = Point(point.policy, point.options, rate)
        timelines = [grid.timeline(at_rate, seed) for seed in grid.seeds]
        numbers = mean_numbers([grid.numbers(timeline) for timeline in timelines])
        is_steady = keeps_up(timelines)
        failed = objective.failed(numbers)
        return SimulatedTrial(numbers, is_steady, (*([] if is_steady else ["backlog"]), *failed))

    return find_capacity(measure, start=start, lowest=start / 1024, precision=precision)


def _capacity_and_most(
    grid: Grid, point: Point, objective: Objective, *, start: float, precision: float
) -> PointCapacity:
    capacity = capacity_of(grid, point, objective, start=start, precision=precision)
    return PointCapacity(capacity, full_house_rate(grid, point))


def capacities(
    grid: Grid,
    points: Sequence[Point],
    objective: Objective,
    *,
    start: float,
    precision: float,
    num_processes: int = 1,
    on_found: Callable[[PointCapacity], None] | None = None,
) -> list[PointCapacity]:
    """The capacity of every point, with a progress bar; each search is one process's.

    Args:
        grid: workload, costs and seeds.
        points: the policies and their options.
        objective: what a rate has to meet.
        start: the first rate, requests per second.
        precision: ratio of the two bounds at which a search ends.
        num_processes: that search at once.
        on_found: is told of every capacity, in the order of the points.
    """
    search = partial(
        _capacity_and_most, grid, objective=objective, start=start, precision=precision
    )
    with workers(num_processes) as pool, progress_bars() as bars:
        found = []
        bar = bars.add_task("searching capacities", total=len(points))
        for capacity in map(search, points) if pool is None else pool.map(search, points):
            found.append(capacity)
            if on_found is not None:
                on_found(capacity)
            bars.advance(bar)
        return found
