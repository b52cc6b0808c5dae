"""Runs of a load side by side as Markdown: `looped bench serve`, and the arms of a replay."""

from collections.abc import Iterator, Mapping
from typing import Any

from looped.measure.capacity import Capacity
from looped.measure.cells import NOTHING, latency_rows, number, number_cell
from looped.measure.page import description_lines, table_head, table_row
from looped.measure.violation import violation_lines

from .benchmark import ServeResult
from .load_summary import Judgement, LoadSummary

LATENCIES = (
    ("TTFT", "ttft"),
    ("ITL", "itl"),
    ("TPOT", "tpot"),
    ("latency", "latency"),
    ("latency per output token", "normalised_latency"),
    ("client's lag", "lag"),
    ("client's event loop, late", "lateness"),
)
RATES = (
    ("requests/s done", "requests_per_second"),
    ("output tokens/s", "output_tokens_per_second"),
    ("prompt tokens/s", "prompt_tokens_per_second"),
    ("tokens per chunk", "tokens_per_chunk"),
)
COUNTED = (
    ("launches", "launches"),
    ("mixed launches", "mixed_launches"),
    ("readbacks", "readbacks"),
    ("cached prompt tokens", "cached_prompt_tokens"),
)
"""Counters of a looped server that are shown; result.json has all of them."""


def runs_table(columns: Mapping[str, LoadSummary], judgement: Judgement) -> Iterator[str]:
    """A column a run."""
    runs = list(columns.values())
    yield from table_head("", list(columns))
    yield table_row("requests/s asked for", [number(run.rate) for run in runs])
    yield table_row("requests/s that came", [number(run.arrived_rate) for run in runs])
    yield table_row("requests", [str(run.num_requests) for run in runs])
    yield table_row("failed", [str(sum(run.failures.values())) for run in runs])
    for title, attribute in RATES:
        yield table_row(title, [number_cell(getattr(run, attribute)) for run in runs])
    if judgement.has_objective:
        yield table_row("met the SLO, %", [number(100 * run.attainment) for run in runs])
        yield table_row("goodput, requests/s", [number(run.goodput) for run in runs])
    yield table_row("backlog at the last arrival", [str(run.backlog_at_last) for run in runs])
    yield table_row("backlog, mean", [number(run.mean_backlog) for run in runs])
    growths = [run.backlog_growth for run in runs]
    yield table_row(
        "backlog, second and last quarter",
        [NOTHING if pair is None else f"{number(pair[0])}, {number(pair[1])}" for pair in growths],
    )
    waiting = [run.waiting_at_last for run in runs]
    if any(value is not None for value in waiting):
        yield table_row("of it without a slot", [NOTHING if v is None else str(v) for v in waiting])
    yield table_row("queue p50, ms", [_queue_cell(run) for run in runs])
    for title, attribute in LATENCIES:
        yield from latency_rows(title, [getattr(run, attribute) for run in runs])
    yield table_row("client's CPU, % of a core", [number(100 * run.client_load) for run in runs])
    for title, name in COUNTED:
        if any(name in run.counted for run in runs):
            yield table_row(title, [str(run.counted.get(name, NOTHING)) for run in runs])
    if not all(run.is_valid for run in runs):
        yield table_row("broken rules", [str(len(run.violations)) for run in runs])
    if judgement.has_objective:
        yield table_row("sustained", ["yes" if run.is_sustained else "no" for run in runs])


def failure_lines(columns: Mapping[str, LoadSummary]) -> Iterator[str]:
    """How many failed in what way, with the first of each in words."""
    for title, run in columns.items():
        for kind, count in run.failures.items():
            yield f"* {title}: {count} x {kind}, the first: {run.failure_details[kind]}"


def serve_page(description: Mapping[str, Any], result: ServeResult) -> Iterator[str]:
    """The page of `looped bench serve`."""
    yield "# Serving under load"
    yield ""
    yield from description_lines({**description, "dropped": result.dropped})
    yield ""
    if result.capacity is not None:
        yield f"**{capacity_words(result.capacity, result.judgement)}**"
        yield ""
    yield from violation_lines(result.violations)
    columns = {run.name: run for run in result.runs}
    failures = list(failure_lines(columns))
    if failures:
        yield from [*failures, ""]
    yield from runs_table(columns, result.judgement)


def capacity_words(capacity: Capacity[LoadSummary], judgement: Judgement) -> str:
    """The answer of a search in one sentence."""
    asked = f"for {100 * judgement.share:g} % of requests to meet {judgement.objective}"
    if capacity.rate is None:
        return f"Capacity: none found {asked}: {_why_none(capacity)}."
    words = f"Capacity: {number(capacity.rate)} requests/s {asked}"
    if capacity.failed_rate is None:
        return f"{words}, or more: no rate that was tried is too much."
    if capacity.is_limited_by_client:
        return f"{words}, or more: at {number(capacity.failed_rate)} the client itself failed."
    return f"{words}; {number(capacity.failed_rate)} is too much."


def _why_none(capacity: Capacity[LoadSummary]) -> str:
    """What the last, lowest rate was like."""
    rate, run = capacity.trials[-1]
    place = f"at {number(rate)} requests/s"
    if run.is_limited_by_client:
        return f"{place} the client itself failed"
    if not run.requests_per_second:
        return f"{place} all requests failed"
    if run.is_hopeless:
        return f"{place} each had the server to itself, so that a lower rate would not help"
    return f"{number(rate)} requests/s, the lowest rate that was to be tried, is too much"


def _queue_cell(run: LoadSummary) -> str:
    if run.queue_p50 is None:
        return NOTHING
    value = number(1e3 * run.queue_p50)
    return value if run.is_queue_counted else f"<= {value} (TTFT)"
