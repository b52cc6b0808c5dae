"""Runs of a load side by side as Markdown: `looped bench serve`, and the arms of a replay."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .capacity import Capacity
from .cells import latency_rows, number
from .load_summary import Judgement, LoadSummary
from .validity import Violation

LATENCIES = (
    ("TTFT", "ttft"),
    ("ITL", "itl"),
    ("TPOT", "tpot"),
    ("latency", "latency"),
    ("latency per output token", "normalised_latency"),
    ("client's lag", "lag"),
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


def description_lines(description: Mapping[str, Any]) -> Iterator[str]:
    """What ran on what."""
    for name, value in description.items():
        if name == "dropped" and value is not None:
            for run, reasons in value.items():
                told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
                yield f"* conversations looked at and dropped, {run}: {told}"
        elif value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            yield f"* {name.replace('_', ' ')}: {shown}"


def violation_lines(violations: Sequence[Violation]) -> Iterator[str]:
    """Broken rules, if there are any."""
    if violations:
        yield f"**INVALID**: {len(violations)} broken rules."
        yield ""
        yield from (f"* {violation}" for violation in violations)
        yield ""


def runs_table(
    columns: Mapping[str, LoadSummary], judgement: Judgement, *, has_rates: bool = True
) -> Iterator[str]:
    """A column a run."""
    runs = list(columns.values())
    yield f"| | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(runs)}"
    if has_rates:
        yield _row("requests/s asked for", [number(run.rate) for run in runs])
        yield _row("requests/s that came", [number(run.arrived_rate) for run in runs])
    yield _row("requests", [str(run.num_requests) for run in runs])
    yield _row("failed", [str(sum(run.failures.values())) for run in runs])
    for title, attribute in RATES:
        values = [getattr(run, attribute) for run in runs]
        yield _row(title, ["-" if value is None else number(value) for value in values])
    if judgement.has_objective:
        yield _row("met the SLO, %", [number(100 * run.attainment) for run in runs])
        yield _row("goodput, requests/s", [number(run.goodput) for run in runs])
    yield _row("backlog at the last arrival", [str(run.backlog_at_last) for run in runs])
    growths = [run.backlog_growth for run in runs]
    yield _row(
        "backlog, second and last quarter",
        ["-" if pair is None else f"{number(pair[0])}, {number(pair[1])}" for pair in growths],
    )
    waiting = [run.waiting_at_last for run in runs]
    if any(value is not None for value in waiting):
        yield _row("of it without a slot", ["-" if v is None else str(v) for v in waiting])
    for title, attribute in LATENCIES:
        yield from latency_rows(title, [getattr(run, attribute) for run in runs])
    yield _row("client's CPU, % of a core", [number(100 * run.client_load) for run in runs])
    for title, name in COUNTED:
        if any(name in run.counted for run in runs):
            yield _row(title, [str(run.counted.get(name, "-")) for run in runs])
    if judgement.has_objective:
        yield _row("sustained", ["yes" if run.is_sustained else "no" for run in runs])


def failure_lines(columns: Mapping[str, LoadSummary]) -> Iterator[str]:
    """How many failed in what way, with the first of each in words."""
    for title, run in columns.items():
        for kind, count in run.failures.items():
            yield f"* {title}: {count} x {kind}, the first: {run.failure_details[kind]}"


def serve_page(
    description: Mapping[str, Any],
    runs: Sequence[LoadSummary],
    judgement: Judgement,
    capacity: Capacity[LoadSummary] | None,
) -> Iterator[str]:
    """The page of `looped bench serve`."""
    yield "# Serving under load"
    yield ""
    yield from description_lines(description)
    yield ""
    if capacity is not None:
        yield f"**{capacity_words(capacity, judgement)}**"
        yield ""
    yield from violation_lines([broken for run in runs for broken in run.violations])
    columns = {run.name: run for run in runs}
    failures = list(failure_lines(columns))
    if failures:
        yield from [*failures, ""]
    yield from runs_table(columns, judgement)


def capacity_words(capacity: Capacity[LoadSummary], judgement: Judgement) -> str:
    """The answer of a search in one sentence."""
    asked = f"for {number(100 * judgement.share)} % of requests to meet {judgement.objective}"
    if capacity.rate is None:
        lowest = min(rate for rate, _ in capacity.trials)
        return f"Capacity: none found, {number(lowest)} requests/s is too much {asked}."
    words = f"Capacity: {number(capacity.rate)} requests/s {asked}"
    if capacity.failed_rate is None:
        return f"{words}, or more: no rate that was tried is too much."
    if capacity.is_limited_by_client:
        return f"{words}, or more: at {number(capacity.failed_rate)} the client itself was late."
    return f"{words}; {number(capacity.failed_rate)} is too much."


def _row(title: str, cells: Sequence[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"
