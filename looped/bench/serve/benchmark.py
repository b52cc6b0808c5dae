"""`looped bench serve`: runs of a load at given rates, or at those that a capacity search asks for.

Every run is a list of arrivals of its own, and leaves a file of what became of each request.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from looped.errors import UsageError
from looped.measure.arrivals import Sample, poisson_arrivals
from looped.measure.capacity import Capacity
from looped.measure.violation import Violation

from .endpoint import Endpoint, measure_load
from .load_summary import Judgement, LoadSummary, some_request_ends_well, summarise_run

logger = logging.getLogger(__name__)

HEAD = {"benchmark": "serve", "schema": 1}
"""What its files are."""


@dataclass(frozen=True, kw_only=True)
class ServeResult:
    """All runs, judged; or those that are over."""

    runs: list[LoadSummary]
    judgement: Judgement
    capacity: Capacity[LoadSummary] | None = None
    """What a search has found, once it is over."""
    dropped: dict[str, dict[str, int]] = field(default_factory=dict)
    """By the run's name, entries of a dataset that were not used, by the reason."""
    is_complete: bool = True

    @property
    def violations(self) -> list[Violation]:
        """Broken rules of the runs that the answer rests on.

        Those are all runs, but of a search the two that bound the capacity. A rate at which all
        requests fail is a bound like any other, if a lower one is sustained.
        """
        if self.capacity is None:
            return [broken for run in self.runs for broken in run.violations]
        has_answer = self.capacity.rate is not None
        return [
            broken
            for run in self.capacity.bounds
            for broken in run.violations
            if not (has_answer and broken.rule == some_request_ends_well.__name__)
        ]

    def to_json(self, description: dict[str, Any]) -> dict[str, Any]:
        """The whole benchmark, for machines."""
        values = {
            **description,
            "is_complete": self.is_complete,
            "is_valid": not self.violations,
            "violations": [str(violation) for violation in self.violations],
            "judgement": asdict(self.judgement),
            "dropped": self.dropped or None,
            "runs": [run.to_json() for run in self.runs],
        }
        if self.capacity is not None:
            values["capacity"] = {
                "rate": self.capacity.rate,
                "failed_rate": self.capacity.failed_rate,
                "is_limited_by_client": self.capacity.is_limited_by_client,
                "is_hopeless": self.capacity.is_hopeless,
            }
        return values


class ServeBenchmark:
    """Measures rates one after the other.

    Args:
        endpoint: the server.
        sample: makes the prompts of a run, by its name.
        seed: of the arrivals.
        judgement: what is asked of a run.
        fewest_requests: that a run must have.
        folder: for the runs' logs; None keeps none.
        on_run: called with what is known after every run.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        sample: Callable[[str], Sample],
        *,
        seed: int,
        judgement: Judgement,
        fewest_requests: int = 1,
        folder: Path | None = None,
        on_run: Callable[[ServeResult], None] = lambda result: None,
    ) -> None:
        self._runs: list[LoadSummary] = []
        self._dropped: dict[str, dict[str, int]] = {}
        self._endpoint = endpoint
        self._sample = sample
        self._seed = seed
        self._judgement = judgement
        self._fewest_requests = fewest_requests
        self._folder = folder
        self._on_run = on_run

    def measure(self, rate: float) -> LoadSummary:
        """One run; it ends when the last request does, and the server is idle then."""
        name = f"run{len(self._runs)}"
        sample = self._sample(name)
        if len(sample.prompts) < self._fewest_requests:
            raise UsageError(
                f"a search needs runs of at least {self._fewest_requests} requests, to see whether "
                f"a backlog grows; got {len(sample.prompts)}"
            )
        if sample.dropped:
            self._dropped[name] = sample.dropped
        arrivals = poisson_arrivals(sample.prompts, rate, seed=self._seed)
        log = None if self._folder is None else self._folder / f"{name}.jsonl"
        run = measure_load(self._endpoint, arrivals, name=name, rate=rate, log=log)
        summary = summarise_run(run, self._judgement)
        told = f"; {100 * summary.attainment:.0f} % met the SLO"
        logger.info(
            "%s: %.3g requests/s asked for, %.3g done%s%s",
            name,
            rate,
            summary.requests_per_second,
            told if self._judgement.has_objective else "",
            "" if summary.is_valid else "; INVALID",
        )
        self._runs.append(summary)
        self._on_run(self.result(is_complete=False))
        return summary

    def result(
        self, capacity: Capacity[LoadSummary] | None = None, *, is_complete: bool = True
    ) -> ServeResult:
        """What the runs so far say."""
        return ServeResult(
            runs=list(self._runs),
            judgement=self._judgement,
            capacity=capacity,
            dropped=dict(self._dropped),
            is_complete=is_complete,
        )
