"""The arms of a replay as Markdown: side by side, and as ratios."""

from collections.abc import Iterator, Mapping
from typing import Any

from .arms import ARMS
from .cells import number
from .load_summary import Judgement, LoadSummary
from .replay import COMPARED, ReplayResult
from .serve_report import description_lines, failure_lines, runs_table, violation_lines

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


def replay_page(
    description: Mapping[str, Any], result: ReplayResult, judgement: Judgement
) -> Iterator[str]:
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
    yield from runs_table(columns, judgement)
    yield ""
    yield "Ratios, of one run each:"
    yield ""
    yield f"| | {' | '.join(f'{first}/{second}' for first, second in COMPARED)} |"
    yield f"|---|{'---|' * len(COMPARED)}"
    pairs = [(result.arms[first], result.arms[second]) for first, second in COMPARED]
    for title, attribute, percentiles in LATENCY_RATIOS:
        for percentile in percentiles:
            values = [
                (_latency(a, attribute, percentile), _latency(b, attribute, percentile))
                for a, b in pairs
            ]
            label = "max" if percentile == "largest" else percentile
            yield f"| {title} {label} | {' | '.join(_ratio(a, b) for a, b in values)} |"
    for title, attribute in RATIOS:
        cells = (_ratio(getattr(a, attribute), getattr(b, attribute)) for a, b in pairs)
        yield f"| {title} | {' | '.join(cells)} |"


def _latency(run: LoadSummary, attribute: str, percentile: str) -> float | None:
    latencies = getattr(run, attribute)
    return None if latencies is None else getattr(latencies, percentile)


def _ratio(first: float | None, second: float | None) -> str:
    return "-" if first is None or not second else number(first / second)
