"""A sweep: every combination of policies, loads and sizes, and capacities that are searched.

    sweep = Sweep(requests, scheduler, costs, SweptOptions(policy=["mixed", "separate"], rate=[10]))
    sweep.run()
    print(sweep.page({}))

What has been run so far can be asked for at any time, so that whatever ends a sweep early loses
little.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, ClassVar

from looped.errors import UsageError
from looped.measure.capacity import check_search
from looped.measure.statistics import Numbers
from looped.sched import CostModel

from ..configs import config_json
from ..inputs import plan_of, seeds_of, warn_of_chunks, warn_of_log
from ..loads.workload import check_rate
from ..options import SimulationOptions, WorkloadOptions, check_differ
from ..report import costs_json, sweep_page
from .capacity import Objective, PointCapacity, capacities
from .grid import Grid, Point, mean_numbers, run_grid

START_RATE = 1.0
PRECISION = 1.05


@dataclass(frozen=True, kw_only=True)
class SweptOptions:
    """Values of the options that are swept, by the options' names; none leaves one as it is.

    Raises:
        UsageError: a value that comes twice, or two kinds of load.
    """

    policy: Sequence[str]
    rate: Sequence[float] = ()
    concurrency: Sequence[int] = ()
    prefill_chunk_size: Sequence[int] = ()
    max_num_seqs: Sequence[int] = ()
    max_num_batched_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        for option in fields(self):
            check_differ(f"--{option.name.replace('_', '-')}", getattr(self, option.name))
        if self.rate and self.concurrency:
            raise UsageError("--rate and --concurrency are two kinds of load; sweep one")

    @property
    def loads(self) -> list[dict[str, Any]]:
        """Every load, as fields of a `Point`."""
        rates = [{"rate": rate} for rate in self.rate]
        return rates or [{"concurrency": concurrency} for concurrency in self.concurrency]

    def sizes(self, scheduler: SimulationOptions) -> list[dict[str, Any]]:
        """Every combination of sizes, as options of a scheduler.

        Args:
            scheduler: has the values of options that are not swept.
        """
        names = ("prefill_chunk_size", "max_num_seqs", "max_num_batched_tokens")
        swept = product(*(getattr(self, name) or [getattr(scheduler, name)] for name in names))
        return [
            replace(scheduler, **dict(zip(names, values, strict=True))).values() for values in swept
        ]


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """A search of the largest rate that keeps an objective; UsageError for one that cannot be."""

    objective: Objective
    start: float = START_RATE
    """The first rate, requests per second."""
    precision: float = PRECISION
    """Ratio of the two bounds at which it ends."""

    def __post_init__(self) -> None:
        check_rate(self.start)
        check_search(self.start, self.start / 1024, self.precision)

    def __str__(self) -> str:
        return ", ".join(f"{name}={bound:g}" for name, bound in self.objective.bounds.items())


class Sweep:
    """Runs every point on every seed, and searches capacities if it is asked to.

    Args:
        requests: which requests come; loads that are swept replace its own.
        scheduler: its options, but for those that are swept.
        costs: seconds of launches.
        swept: what is swept.
        search: of a capacity for every policy and size; None searches none.
        num_seeds: every point runs on each.
        is_deterministic: as `--deterministic` of an engine has it.

    Raises:
        LoopedError: a file that cannot be read, a point that could not run, or options that
            contradict each other; nothing has run then.
    """

    head: ClassVar[dict[str, Any]] = {"benchmark": "simulated sweep", "schema": 1}
    """What its files are."""

    def __init__(
        self,
        requests: WorkloadOptions,
        scheduler: SimulationOptions,
        costs: CostModel,
        swept: SweptOptions,
        *,
        search: RateSearch | None = None,
        num_seeds: int = 1,
        is_deterministic: bool = False,
    ) -> None:
        _check_load(requests, swept, search)
        searched_rate = None if search is None else search.start
        load = replace(
            requests,
            rate=swept.rate[0] if swept.rate else searched_rate,
            concurrency=swept.concurrency[0] if swept.concurrency else None,
        )
        plan = plan_of(load, costs.num_planes)
        seeds = seeds_of(plan, num_seeds)
        if search is not None:
            for seed in seeds:
                search.objective.check(plan.workload(seed))
        self._costs = costs
        self._search = search
        self._grid = Grid(plan, costs, seeds, is_deterministic=is_deterministic)
        sizes = swept.sizes(scheduler)
        loads = swept.loads
        if not loads and search is None:
            loads = [{}]  # as the requests came
        self.points = [
            Point(name, options, **one)
            for name, options, one in product(swept.policy, sizes, loads)
        ]
        """Policies, sizes and loads that are run."""
        self._searched = [Point(name, options) for name, options in product(swept.policy, sizes)]
        self._configs = [self._grid.config(point) for point in self._searched]
        for point in self.points:
            self._grid.config(point)
        warn_of_log(plan, scheduler, self._configs, is_deterministic=is_deterministic)
        warn_of_chunks(self._configs)
        self._columns: list[dict[str, Any]] = [
            {
                **point.columns,
                "max_num_batched_tokens": config.budget,
                "prefill_chunk_size": config.chunk_size,
            }
            for point, config in zip(self._searched, self._configs, strict=True)
        ]
        self._num_loads = len(loads)
        """Of every policy and size; they follow each other."""
        self._runs: list[dict[str, Any]] = []
        self._means: list[dict[str, Any]] = []
        self._found: list[PointCapacity] = []

    @property
    def facts(self) -> dict[str, Any]:
        """What is swept, for the record."""
        return {
            "seeds": len(self._grid.seeds),
            "costs": self._costs.name,
            "deterministic": self._grid.is_deterministic,
            **self._grid.plan.to_json(),
            "rate": None,
            "concurrency": None,
            "objective": None if self._search is None else str(self._search),
        }

    def run(self, *, num_processes: int = 1, on_growth: Callable[[], None] = lambda: None) -> None:
        """Runs it all, with a progress bar.

        Args:
            num_processes: that simulate at once.
            on_growth: called whenever there is more to tell.
        """

        def add_run(point: Point, seed: int, numbers: Numbers) -> None:
            self._add_run(seed, numbers)
            on_growth()

        def add_capacity(capacity: PointCapacity) -> None:
            self._found.append(capacity)
            on_growth()

        run_grid(self._grid, self.points, num_processes=num_processes, on_run=add_run)
        if self._search is not None:
            capacities(
                self._grid,
                self._searched,
                self._search.objective,
                start=self._search.start,
                precision=self._search.precision,
                num_processes=num_processes,
                on_found=add_capacity,
            )

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rows so far: of `runs`, of `points` (means over the seeds), and of `capacities`."""
        limits = [
            {**{name: value for name, value in own.items() if name != "rate"}, **one.columns}
            for own, one in zip(self._columns, self._found, strict=False)
        ]
        return {"runs": self._runs, "points": self._means, "capacities": limits}

    def page(self, description: Mapping[str, Any]) -> str:
        """What is known so far, for people."""
        tables = self.tables
        page = sweep_page(description, self._costs, tables["points"])
        if tables["capacities"]:
            page += "\n" + sweep_page({}, self._costs, tables["capacities"])
        return page

    def to_json(self, description: Mapping[str, Any], *, is_complete: bool) -> dict[str, Any]:
        """What is known so far, for machines."""
        tables = self.tables
        return {
            **description,
            "costs": costs_json(self._costs),
            "schedulers": list(map(config_json, self._configs)),
            "points": tables["points"],
            "capacities": tables["capacities"],
            "is_complete": is_complete,
        }

    def _add_run(self, seed: int, numbers: Numbers) -> None:
        index, num_seeds = len(self._means), len(self._grid.seeds)
        point = self.points[index]
        own = self._columns[index // self._num_loads]
        names = dict.fromkeys(name for one in self._columns for name in one)
        own = {**names, **own, "rate": point.rate, "concurrency": point.concurrency}
        self._runs.append({**own, "seed": seed, **numbers})
        if len(self._runs) % num_seeds == 0:
            self._means.append({**own, **mean_numbers(self._runs[-num_seeds:])})


def _check_load(requests: WorkloadOptions, swept: SweptOptions, search: RateSearch | None) -> None:
    """UsageError for requests that come at no time, or for a search beside a closed loop."""
    has_requests = requests.workload is not None or requests.from_log is not None
    if search is None and not (swept.loads or has_requests):
        raise UsageError("expected loads to sweep (--rate or --concurrency), or an --slo to search")
    if search is not None and swept.concurrency:
        raise UsageError("--slo searches a rate; leave out --concurrency")
