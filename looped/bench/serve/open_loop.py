"""An open-loop load on a running server: what is asked, at which rates, and where that is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped.errors import UsageError
from looped.measure.arrivals import check_rate
from looped.measure.backlog import FEWEST_FOR_GROWTH
from looped.measure.capacity import check_search, find_capacity
from looped.measure.results_folder import make_folder, write_results

from .benchmark import HEAD, ServeBenchmark, ServeResult
from .endpoint import Endpoint
from .load_summary import Judgement
from .prompt_source import PromptSource
from .report import serve_page


@dataclass(frozen=True, kw_only=True)
class CapacitySearch:
    """A search of the largest rate that is sustained."""

    precision: float = 1.1
    """Ratio of the rates between which it ends."""
    longest_run: float = 3600.0
    """Seconds; it tries no rate at which arrivals take longer."""


@dataclass(frozen=True, kw_only=True)
class OpenLoopLoad:
    """Requests that come when they come, however slow the server is.

    Raises:
        UsageError: a rate that is none, or a search that has no objective, no beginning or no end.
    """

    endpoint: Endpoint
    prompts: PromptSource
    judgement: Judgement
    rates: Sequence[float]
    """Requests per second, for a run each, or the one that a search begins with."""
    search: CapacitySearch | None = None
    vocab_size: int | None = None
    """Made-up prompts have ids below it. None: as the server says."""
    tokenizer: Path | None = None
    """Folder of the model's tokenizer, for a dataset. None: the served model's name is a folder."""
    seed: int = 0
    """Of the arrivals."""
    prompt_seed: int
    """Of the prompts."""

    def __post_init__(self) -> None:
        for rate in self.rates:
            check_rate(rate)
        if self.search is not None:
            self._check_search(self.search)

    def _check_search(self, search: CapacitySearch) -> None:
        has_objective, num_requests = self.judgement.has_objective, self.prompts.num_requests
        if len(self.rates) != 1 or not has_objective:
            raise UsageError(
                "--find-capacity searches from one --rate on, for --slo-ttft SECONDS, --slo-itl "
                f"SECONDS or both; got {len(self.rates)} rates, {'an' if has_objective else 'no'} "
                "SLO"
            )
        (start,) = self.rates
        if start < self.lowest_rate(search):
            raise UsageError(
                f"{num_requests} requests take {num_requests / start:g} s to arrive at --rate "
                f"{start:g}; raise the rate, or raise --longest-run {search.longest_run:g}"
            )
        check_search(start, self.lowest_rate(search), search.precision)
        if num_requests < FEWEST_FOR_GROWTH:
            raise UsageError(
                f"--find-capacity needs runs of at least {FEWEST_FOR_GROWTH} requests, to see "
                f"whether a backlog grows; got --num-requests {num_requests}"
            )

    def lowest_rate(self, search: CapacitySearch) -> float:
        """Below which the arrivals of a run take longer than a search allows."""
        return self.prompts.num_requests / search.longest_run


def run_load(
    load: OpenLoopLoad, facts: Mapping[str, Any], folder: Path | None
) -> tuple[dict[str, Any], ServeResult]:
    """Loads a server, one run after the other.

    Args:
        load: what it is asked.
        facts: how the run came about, for the record.
        folder: to make, for the results and every request's times; None keeps none.

    Returns:
        What was done, for the record, and its results.

    Raises:
        LoopedError: the server does not answer as it should, or has no such prompts.
    """
    card = load.endpoint.card()
    sample = load.prompts.sampler(
        vocab_size=load.vocab_size or card.get("vocab_size"),
        max_model_len=card.get("max_model_len"),
        tokenizer=load.tokenizer or Path(str(card["id"])),
        seed=load.prompt_seed,
    )
    dataset = load.prompts.dataset
    description = {
        **HEAD,
        **facts,
        "url": load.endpoint.url,
        "model": card["id"],
        "dataset": None if dataset is None else str(dataset),
        "seed": load.seed,
        "prompt_seed": load.prompt_seed,
    }

    def keep(result: ServeResult) -> None:
        if folder is not None:
            page = "\n".join(serve_page(description, result)) + "\n"
            write_results(folder, result.to_json(description), page)

    benchmark = ServeBenchmark(
        load.endpoint,
        sample,
        seed=load.seed,
        judgement=load.judgement,
        fewest_requests=1 if load.search is None else FEWEST_FOR_GROWTH,
        folder=folder,
        on_run=keep,
    )
    if folder is not None:
        make_folder(folder, description)
    capacity = None
    if load.search is None:
        for rate in load.rates:
            benchmark.measure(rate)
    else:
        capacity = find_capacity(
            benchmark.measure,
            start=load.rates[0],
            lowest=load.lowest_rate(load.search),
            precision=load.search.precision,
        )
    result = benchmark.result(capacity)
    keep(result)
    return description, result
