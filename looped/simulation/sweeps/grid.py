"""Many simulated runs: every point of a grid on every seed, in one process or several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from looped.measure.statistics import Numbers
from looped.progress import progress_bars
from looped.record.timeline import Timeline
from looped.sched import CostModel, Policy, SchedulerConfig

from ..coverage import UNNAMED, unnamed_share
from ..loads.workload import check_rate
from ..options import parse_policy
from ..runs import WorkloadPlan, scheduler_config, simulate
from ..summary import UNITS, Summary


@dataclass(frozen=True)
class Point:
    """One way to serve one load."""

    policy: str | Policy
    """As a user types it: a name, with options behind a colon; or one that is not installed."""
    options: Mapping[str, Any]
    """Of `SchedulerConfig`, but for the policy."""
    rate: float | None = None
    """Requests per second, instead of the plan's."""
    concurrency: int | None = None
    """Instead of the plan's."""

    @property
    def columns(self) -> dict[str, Any]:
        """What tells it apart, by name."""
        name = self.policy if isinstance(self.policy, str) else self.policy.name
        return {
            "policy": name,
            "rate": self.rate,
            "concurrency": self.concurrency,
            **self.options,
        }

    @property
    def scheduler_options(self) -> dict[str, Any]:
        """Of `SchedulerConfig`, the policy among them."""
        if isinstance(self.policy, str):
            return {**self.options, **parse_policy(self.policy)}
        return {**self.options, "policy": self.policy}


@dataclass(frozen=True)
class Grid:
    """What all points have in common."""

    plan: WorkloadPlan
    costs: CostModel
    seeds: Sequence[int]
    is_deterministic: bool = False
    """As `--deterministic` of an engine has it."""

    def config(self, point: Point) -> SchedulerConfig:
        """The scheduler's configuration; UsageError for a point that could not run."""
        check_rate(point.rate)
        workload = self._plan(point).workload(self.seeds[0], rate=point.rate)
        return scheduler_config(workload, point.scheduler_options)

    def run(self, point: Point, seed: int) -> Numbers:
        """The numbers of one run."""
        return self.numbers(self.timeline(point, seed))

    def numbers(self, timeline: Timeline) -> Numbers:
        """Of its summary, and the share of its launches that the costs do not name."""
        return {**Summary.of(timeline).numbers, UNNAMED: unnamed_share(timeline, self.costs)}

    def timeline(self, point: Point, seed: int) -> Timeline:
        """What happens in one run."""
        workload = self._plan(point).workload(seed, rate=point.rate)
        config = scheduler_config(workload, point.scheduler_options)
        return simulate(workload, config, self.costs, is_deterministic=self.is_deterministic)

    def run_pair(self, pair: tuple[Point, int]) -> Numbers:
        """The same, of a point and a seed in one."""
        return self.run(*pair)

    def _plan(self, point: Point) -> WorkloadPlan:
        if point.concurrency is None:
            return self.plan
        return replace(self.plan, concurrency=point.concurrency)


@contextmanager
def workers(num_processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes to simulate in, which import what they need; None for one, which is this."""
    if num_processes == 1:
        yield None
        return
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # else it would run all that is left
            raise


def run_grid(
    grid: Grid,
    points: Sequence[Point],
    *,
    num_processes: int = 1,
    on_run: Callable[[Point, int, Numbers], None] | None = None,
) -> list[list[Numbers]]:
    """Numbers of every point on every seed, with a progress bar.

    Args:
        grid: workload, costs and seeds.
        points: to run.
        num_processes: that simulate at once.
        on_run: is told of every run (point, seed, numbers), in order.

    Raises:
        UsageError: a point that could not run; nothing has run then.
    """
    for point in points:
        grid.config(point)
    runs = [(point, seed) for point in points for seed in grid.seeds]
    numbers: list[Numbers] = []
    with workers(num_processes) as pool, progress_bars() as bars:
        bar = bars.add_task("simulating", total=len(runs))
        mapped = map(grid.run_pair, runs) if pool is None else pool.map(grid.run_pair, runs)
        for (point, seed), one in zip(runs, mapped, strict=True):
            numbers.append(one)
            if on_run is not None:
                on_run(point, seed, one)
            bars.advance(bar)
    size = len(grid.seeds)
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def mean_numbers(runs: Sequence[Numbers]) -> dict[str, float | None]:
    """Means over seeds of each run's number, of its percentiles too; None where one has none."""
    means: dict[str, float | None] = {}
    for name in (*UNITS, *(name for name in runs[0] if name == UNNAMED)):
        values = [value for numbers in runs if (value := numbers[name]) is not None]
        means[name] = sum(values) / len(values) if len(values) == len(runs) else None
    return means
