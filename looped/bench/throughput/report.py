"""The throughput benchmark as Markdown: what was run on what, then one table a point."""

from collections.abc import Iterator, Sequence
from typing import Any

from looped.measure.cells import NOTHING, latency_rows, metric_cell, shown_unit
from looped.measure.page import description_lines, table_head, table_row
from looped.measure.statistics import Spread
from looped.measure.violation import violation_lines

from .runs import BASE_THRESHOLD, THROUGHPUT_METRICS
from .summary import ThresholdSummary, ThroughputResult

RATIOS = ("output_tokens_per_second", "tpot_p50", "itl_p50", "ttft_p50", "launches_per_token")
"""Metrics of which paired ratios are shown; result.json has all of them."""
SHARES = ("flop_bound_share", "work_bound_share")


def to_markdown(results: Sequence[ThroughputResult], description: dict[str, Any]) -> str:
    """The whole benchmark as one page."""
    return "\n".join(_page(results, description)) + "\n"


def _page(results: Sequence[ThroughputResult], description: dict[str, Any]) -> Iterator[str]:
    yield "# Throughput"
    yield ""
    yield from description_lines(description)
    for result in results:
        yield ""
        yield from _section(result)


def _section(result: ThroughputResult) -> Iterator[str]:
    point, loop, parameters = result.point, result.point.loop, result.parameters
    yield f"## {point.name}"
    yield ""
    yield (
        f"{loop.num_requests} requests, {loop.concurrency} at any time, prompts of "
        f"{loop.prompt_tokens} tokens, {loop.output_tokens} output tokens; "
        f"policy {point.policy_label}, budget {point.budget}, chunk {point.chunk_size}; "
        f"{result.num_rounds} rounds. Parameters of the LM head F0 {parameters.head:,}, of a "
        f"recurrent pass Fr {parameters.recurrent:,}, P {point.num_planes}."
    )
    yield ""
    yield from violation_lines(result.violations)
    yield from _table(result)
    for threshold, summary in result.thresholds.items():
        if threshold != BASE_THRESHOLD:
            yield ""
            yield _verdict(threshold, summary)


def _table(result: ThroughputResult) -> Iterator[str]:
    """Pooled latencies, every metric, then ratios to threshold 1."""
    columns = list(result.thresholds.values())
    yield "Latencies pooled over all runs of a threshold; the others: median over runs [quartiles]."
    yield ""
    yield from table_head("threshold", [f"{threshold:g}" for threshold in result.thresholds])
    for metric in THROUGHPUT_METRICS.values():
        title = f"`{metric.name}`, {shown_unit(metric.unit)}"
        yield from _row(title, [one.metrics.get(metric.name) for one in columns], metric.unit)
    for title, attribute in (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl")):
        if any(getattr(one, attribute) for one in columns):
            yield from latency_rows(title, [getattr(one, attribute) for one in columns])
    for name in RATIOS:
        yield from _row(f"`{name}`, x threshold 1", [one.ratios.get(name) for one in columns], "x")


def _row(title: str, spreads: Sequence[Spread | None], unit: str) -> Iterator[str]:
    cells = [metric_cell(spread, unit) for spread in spreads]
    if any(cell != NOTHING for cell in cells):
        yield table_row(title, cells)


def _verdict(threshold: float, summary: ThresholdSummary) -> str:
    """What early exit brought, in a sentence."""
    metrics = summary.metrics
    if any(name not in metrics for name in SHARES):
        return (
            f"Threshold {threshold:g}: no token left early, so the bound is 1 and no share of it."
        )
    bound, share = metrics["flop_bound"], metrics["flop_bound_share"]
    work, work_share = metrics["work_bound"], metrics["work_bound_share"]
    return (
        f"Threshold {threshold:g}: {metrics['speed_up'].median:.3f} times as fast as threshold 1. "
        f"Of the FLOP bound {bound.median:.3f} that is a share of {share.median:.2f} "
        f"[{share.first_quartile:.2f}, {share.third_quartile:.2f}]; of the bound with prompts, "
        f"{work.median:.3f}, {work_share.median:.2f} [{work_share.first_quartile:.2f}, "
        f"{work_share.third_quartile:.2f}]."
    )
