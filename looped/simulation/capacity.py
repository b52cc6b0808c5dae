"""How much load a policy bears, found by simulating.

That is its rate in a full house, or the largest rate at which it meets an objective.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from looped.bench.backlog import FEWEST_FOR_GROWTH, backlog_growth, is_bounded
from looped.bench.capacity import Capacity, find_capacity
from looped.bench.statistics import MIN_VALUES_FOR_P99, Numbers
from looped.errors import UsageError
from looped.progress import progress_bars
from looped.sched import SchedulerConfig
from looped.timeline import Timeline

from .grid import Grid, Point, mean_numbers, workers
from .summary import UNITS, Summary
from .workload import Workload

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

    def is_met(self, numbers: Numbers) -> bool:
        """Whether every bound holds.

        Raises:
            UsageError: a run has too few values for a number that is bounded.
        """
        for name, bound in self.bounds.items():
            value = numbers[name]
            if value is None:
                raise UsageError(
                    f"{name} needs at least 1,000 values in every run; simulate more requests"
                )
            if value > bound:
                return False
        return True


def full_house_rate(grid: Grid, point: Point) -> float:
    """Requests per second in a closed loop of max_num_seqs: what a load is a share of.

    Args:
        grid: workload, costs and seeds; the plan has no rate of its own.
        point: the policy and its options, whatever its load.
    """
    num_seqs = point.options.get("max_num_seqs", SchedulerConfig.max_num_seqs)
    full = Point(point.policy, point.options, concurrency=num_seqs)
    runs = [grid.run(full, seed) for seed in grid.seeds]
    return fmean(rate for run in runs if (rate := run["requests_per_second"]) is not None)


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
    is_sustained: bool
    is_limited_by_client: bool = False
    is_hopeless: bool = False


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
        numbers = mean_numbers([Summary.of(timeline).numbers for timeline in timelines])
        is_steady = keeps_up(timelines)
        return SimulatedTrial(numbers, is_steady, is_steady and objective.is_met(numbers))

    return find_capacity(measure, start=start, lowest=start / 1024, precision=precision)


def capacities(
    grid: Grid,
    points: Sequence[Point],
    objective: Objective,
    *,
    start: float,
    precision: float,
    num_processes: int = 1,
    on_found: Callable[[Capacity[SimulatedTrial]], None] | None = None,
) -> list[Capacity[SimulatedTrial]]:
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
    search = partial(capacity_of, grid, objective=objective, start=start, precision=precision)
    with workers(num_processes) as pool, progress_bars() as bars:
        found = []
        bar = bars.add_task("searching capacities", total=len(points))
        for capacity in map(search, points) if pool is None else pool.map(search, points):
            found.append(capacity)
            if on_found is not None:
                on_found(capacity)
            bars.advance(bar)
        return found
