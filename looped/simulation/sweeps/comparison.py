"""A comparison: several policies on the same requests, arrivals and depths, seed by seed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from looped.measure.statistics import Numbers
from looped.sched import CostModel

from ..configs import config_json
from ..inputs import plan_of, seeds_of, warn_of_chunks, warn_of_log
from ..options import SimulationOptions, WorkloadOptions, check_differ
from ..report import comparison_page, costs_json
from ..summary import UNITS
from .grid import Grid, Point, mean_numbers, run_grid
from .paired import PairedNumber, paired_numbers


class Comparison:
    """Runs policies on the same seeds.

    Args:
        requests: which requests come.
        scheduler: its options, but for the policy.
        costs: seconds of launches.
        policies: as a user types them; the first is what the others are held against.
        num_seeds: every policy runs on each.
        is_deterministic: as `--deterministic` of an engine has it.

    Raises:
        LoopedError: a file that cannot be read, a policy that could not run, or options that
            contradict each other; nothing has run then.
    """

    head: ClassVar[dict[str, Any]] = {"benchmark": "simulated comparison", "schema": 1}
    """What its files are."""

    def __init__(
        self,
        requests: WorkloadOptions,
        scheduler: SimulationOptions,
        costs: CostModel,
        policies: Sequence[str],
        *,
        num_seeds: int = 1,
        is_deterministic: bool = False,
    ) -> None:
        check_differ("--policy", policies)
        plan = plan_of(requests, costs.num_planes)
        seeds = seeds_of(plan, num_seeds)
        self._costs = costs
        self._policies = policies
        self._grid = Grid(plan, costs, seeds, is_deterministic=is_deterministic)
        self._points = [Point(name, scheduler.values()) for name in policies]
        self._configs = [self._grid.config(point) for point in self._points]
        warn_of_log(plan, scheduler, self._configs, is_deterministic=is_deterministic)
        warn_of_chunks(self._configs)
        self._rows: list[dict[str, Any]] = []

    @property
    def facts(self) -> dict[str, Any]:
        """What is compared, for the record."""
        return {
            "seeds": len(self._grid.seeds),
            "costs": self._costs.name,
            "deterministic": self._grid.is_deterministic,
            **self._grid.plan.to_json(),
        }

    def run(self, *, num_processes: int = 1, on_growth: Callable[[], None] = lambda: None) -> None:
        """Runs it all, with a progress bar.

        Args:
            num_processes: that simulate at once.
            on_growth: called whenever there is more to tell.
        """
        chunk_sizes = {
            name: one.chunk_size for name, one in zip(self._policies, self._configs, strict=True)
        }

        def add(point: Point, seed: int, numbers: Numbers) -> None:
            told = {"policy": point.policy, "prefill_chunk_size": chunk_sizes[str(point.policy)]}
            self._rows.append({**told, "seed": seed, **numbers})
            on_growth()

        run_grid(self._grid, self._points, num_processes=num_processes, on_run=add)

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Rows so far, of `runs`."""
        return {"runs": self._rows}

    @property
    def means(self) -> dict[str, dict[str, float | None]]:
        """Means over the seeds, of every policy that has run."""
        return {name: mean_numbers(own) for name, own in self._rows_by_policy().items() if own}

    @property
    def paired(self) -> dict[str, dict[str, PairedNumber]]:
        """Differences of every other policy that has run from the first, on the same seeds."""
        runs = self._rows_by_policy()
        baseline, *others = self._policies
        return {
            name: paired_numbers(own, runs[baseline][: len(own)])
            for name in others
            if (own := [{number: row[number] for number in UNITS} for row in runs[name]])
        }

    def page(self, description: Mapping[str, Any]) -> str:
        """What is known so far, for people."""
        baseline = self._policies[0]
        return comparison_page(description, self._costs, self.means, self.paired, baseline)

    def to_json(self, description: Mapping[str, Any], *, is_complete: bool) -> dict[str, Any]:
        """What is known so far, for machines."""
        return {
            **description,
            "costs": costs_json(self._costs),
            "schedulers": list(map(config_json, self._configs)),
            "means": self.means,
            "baseline": self._policies[0],
            "paired": {
                name: {number: one.to_json() for number, one in numbers.items()}
                for name, numbers in self.paired.items()
            },
            "is_complete": is_complete,
        }

    def _rows_by_policy(self) -> dict[str, list[dict[str, Any]]]:
        return {
            name: [row for row in self._rows if row["policy"] == name] for name in self._policies
        }
