"""The arms of a replay as Markdown: side by side, and as ratios."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from looped.measure.cells import number_cell
from looped.measure.page import description_lines, table_head, table_row
from looped.measure.violation import violation_lines

from ..arms import ARMS
from ..serve.load_summary import LoadSummary
from ..serve.report import failure_lines, runs_table
from .benchmark import COMPARED, ReplayResult

LATENCY_RATIOS = (
    ("ITL", "itl", ("p50", "p95", "p99", "largest")),
    ("TTFT", "ttft", ("p50", "p95", "p99")),
    ("TPOT", "tpot", ("p50",)),
    ("latency", "latency", ("p50", "p95")),
)
RATIOS = (
    ("output tokens/s", "output_tokens_per_second"),
    ("requests/s done", "requests_per_second"),
)


def replay_page(description: Mapping[str, Any], result: ReplayResult) -> Iterator[str]:
    """The page of `looped bench replay`."""
    yield "# One list of arrivals under each policy"
    yield ""
    yield from description_lines(description)
    yield ""
    yield from violation_lines(result.violations)
    columns = {f"{name} {ARMS[name].title}": summary for name, summary in result.arms.items()}
    failures = list(failure_lines(columns))
    if failures:
        yield from [*failures, ""]
    yield from runs_table(columns, result.judgement)
    yield ""
    compared = [pair for pair in COMPARED if result.arms.keys() >= set(pair)]
    if compared:
        yield "Ratios, of one run each:"
        yield ""
        yield from table_head("", [f"{first}/{second}" for first, second in compared])
        pairs = [(result.arms[first], result.arms[second]) for first, second in compared]
        yield from _ratio_rows(pairs)


def _ratio_rows(pairs: Sequence[tuple[LoadSummary, LoadSummary]]) -> Iterator[str]:
    for title, attribute, percentiles in LATENCY_RATIOS:
        for percentile in percentiles:
            values = [
                (_latency(a, attribute, percentile), _latency(b, attribute, percentile))
                for a, b in pairs
            ]
            label = "max" if percentile == "largest" else percentile
            yield table_row(f"{title} {label}", [_ratio(a, b) for a, b in values])
    for title, attribute in RATIOS:
        yield table_row(
            title, [_ratio(getattr(a, attribute), getattr(b, attribute)) for a, b in pairs]
        )


def _latency(run: LoadSummary, attribute: str, percentile: str) -> float | None:
    latencies = getattr(run, attribute)
    return None if latencies is None else getattr(latencies, percentile)


def _ratio(first: float | None, second: float | None) -> str:
    return number_cell(None if first is None or not second else first / second)
