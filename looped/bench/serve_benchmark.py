"""`looped bench serve`: runs of a load at given rates, or at those that a capacity search asks for.

Every run is a list of arrivals of its own, and leaves a file of what became of each request.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from looped.errors import LoopedError, UsageError
from looped.progress import progress_bars

from .arrivals import Arrival, Prompt, Sample, poisson_arrivals
from .capacity import Capacity
from .load_client import LoadClient
from .load_run import LoadRun, play_run
from .load_summary import Judgement, LoadSummary, summarise
from .served_request import ServedRequest

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
RESULT_FILE, TABLE_FILE = "result.json", "result.md"
WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server, as a client reaches it."""

    url: str
    model: str | None = None
    """Name in requests; None asks the server."""
    api_key: str | None = None
    timeout: float = 600.0
    """Seconds that a request may take."""

    def client(self) -> LoadClient:
        return LoadClient(self.url, model=self.model, api_key=self.api_key, timeout=self.timeout)

    def card(self) -> dict[str, Any]:
        """What the server says about the model; LoopedError if it does not."""

        async def ask() -> dict[str, Any]:
            async with self.client() as client:
                return await client.model_card()

        return asyncio.run(ask())


def measure_load(
    target: Target,
    arrivals: list[Arrival],
    *,
    name: str,
    rate: float,
    log: Path | None,
) -> LoadRun:
    """Warms up, plays the list, and keeps what was seen.

    Args:
        target: the server.
        arrivals: in order of time.
        name: of the run.
        rate: of the arrivals, for the record.
        log: JSON lines to write, one a request.

    Raises:
        LoopedError: the server does not answer as it should before the run.
    """
    with progress_bars() as progress:
        task = progress.add_task(f"{name}, {rate:.3g} requests/s", total=len(arrivals))

        async def play() -> LoadRun:
            async with target.client() as client:
                await client.model_card()
                await client.warm_up(Arrival(0, 0.0, _warm_up_prompt(arrivals[0].prompt)))
                return await play_run(
                    client,
                    arrivals,
                    name=name,
                    rate=rate,
                    on_end=lambda served: progress.advance(task),
                )

        run = asyncio.run(play())
    if log is not None:
        lines = (json.dumps(served.to_json()) + "\n" for served in run.requests)
        log.write_text("".join(lines), encoding="utf-8")
    return run


def _warm_up_prompt(prompt: Prompt) -> Prompt:
    """As long as one that is measured, with other ids in it for all but the last."""
    return Prompt(prompt.token_ids[::-1], min(WARM_UP_TOKENS, prompt.output_tokens))


class ServeBenchmark:
    """Measures rates one after the other.

    Args:
        target: the server.
        sample: makes the prompts of a run, by its name.
        seed: of the arrivals.
        judgement: what is asked of a run.
        folder: for the runs' logs; None keeps none.
    """

    def __init__(
        self,
        target: Target,
        sample: Callable[[str], Sample],
        *,
        seed: int,
        judgement: Judgement,
        folder: Path | None,
    ) -> None:
        self.runs: list[LoadSummary] = []
        self.dropped: dict[str, dict[str, int]] = {}
        """By the run's name, entries of a dataset that were not used, by the reason."""
        self._target = target
        self._sample = sample
        self._seed = seed
        self._judgement = judgement
        self._folder = folder

    def measure(self, rate: float) -> LoadSummary:
        """One run; it ends when the last request does, and the server is idle then."""
        name = f"run{len(self.runs)}"
        sample = self._sample(name)
        if sample.dropped:
            self.dropped[name] = sample.dropped
        arrivals = poisson_arrivals(sample.prompts, rate, seed=self._seed)
        log = None if self._folder is None else self._folder / f"{name}.jsonl"
        run = measure_load(self._target, arrivals, name=name, rate=rate, log=log)
        summary = summarise(run, self._judgement)
        told = f"; {100 * summary.attainment:.0f} % met the SLO"
        logger.info(
            "%s: %.3g requests/s asked for, %.3g done%s%s",
            name,
            rate,
            summary.requests_per_second,
            told if self._judgement.has_objective else "",
            "" if summary.is_valid else "; INVALID",
        )
        self.runs.append(summary)
        return summary


def make_folder(folder: Path | None) -> None:
    """Makes a folder for results; UsageError if there is one."""
    if folder is None:
        return
    if folder.exists():
        raise UsageError(f"{folder} exists; choose another name for the results")
    folder.mkdir(parents=True)


def write_results(folder: Path, result: dict[str, Any], table: str) -> None:
    """Puts `result.json` and `result.md` into the folder."""
    text = json.dumps(result, indent=1) + "\n"
    (folder / RESULT_FILE).write_text(text, encoding="utf-8")
    (folder / TABLE_FILE).write_text(table, encoding="utf-8")


def read_requests(log: Path) -> list[ServedRequest]:
    """A run's log, read back."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return [ServedRequest.from_json(json.loads(line)) for line in lines]


def to_json(
    description: dict[str, Any],
    runs: list[LoadSummary],
    judgement: Judgement,
    capacity: Capacity[LoadSummary] | None,
) -> dict[str, Any]:
    """The whole benchmark, for machines."""
    result = {
        "schema": SCHEMA_VERSION,
        **description,
        "judgement": asdict(judgement),
        "is_valid": all(run.is_valid for run in runs),
        "runs": [run.to_json() for run in runs],
    }
    if capacity is not None:
        result["capacity"] = {
            "rate": capacity.rate,
            "failed_rate": capacity.failed_rate,
            "is_limited_by_client": capacity.is_limited_by_client,
        }
    return result


def check_valid(violations: list[str]) -> None:
    """LoopedError if a rule is broken."""
    if violations:
        raise LoopedError(
            f"the benchmark is invalid, {len(violations)} broken rules: {violations[0]}"
        )
