"""A benchmark as Markdown: what was run on what, then a table an arm and one of paired ratios."""

from collections.abc import Iterator

from looped.measure.cells import NOTHING, latency_rows, metric_cell, number_cell, shown_unit
from looped.measure.page import description_lines, table_head, table_row
from looped.measure.violation import violation_lines

from ..arms import ARMS, COMPARISONS
from .arm_metrics import METRICS
from .benchmark import Benchmark, Result
from .comparison import Comparison

RATIOS = (
    "window_itl_p50",
    "window_itl_p95",
    "window_itl_max",
    "itl_p50",
    "stall_factor",
    "interference_per_prompt",
    "tpot",
    "ttft_prompt",
    "ttft_bystander",
    "output_tokens_per_second",
    "prompt_token_loops_per_second",
    "decode_token_loops_per_second",
    "launches_per_token",
    "host_wait_per_token",
    "host_gap",
)
"""Metrics of which paired ratios are shown; result.json has all of them."""


def to_markdown(benchmark: Benchmark) -> str:
    """The whole benchmark as one page."""
    return "\n".join(_page(benchmark)) + "\n"


def _page(benchmark: Benchmark) -> Iterator[str]:
    yield "# Prefill interference"
    yield ""
    yield from description_lines(benchmark.description)
    rounds = benchmark.description["rounds"]
    yield f"* {sum(rounds)} pairs in {len(rounds)} processes"
    for result in benchmark.results:
        yield ""
        yield from _section(result)


def _section(result: Result) -> Iterator[str]:
    point, workload = result.point, result.point.workload
    exits = "every loop" if point.exit_threshold == 1 and not workload.traces else point.exits
    yield f"## {point.name}"
    yield ""
    yield (
        f"{workload.num_decoders} decoders of {workload.output_tokens} tokens (prompts of "
        f"{workload.decoder_prompt_tokens}), {workload.num_prompts} prompts of "
        f"{workload.prompt_tokens} tokens, the first at {workload.first_injection} committed "
        f"decoder tokens, then every {workload.injection_interval}; bystanders of "
        f"{workload.bystander_tokens} tokens; budget {point.budget}, chunk {point.chunk_size}, "
        f"{point.max_num_seqs} sequences, threshold {point.exit_threshold:g}, exits: {exits}."
    )
    yield ""
    comparison = result.comparison
    yield from violation_lines(comparison.violations)
    for count, what in (
        (comparison.num_parted_requests, "token ids"),
        (comparison.num_parted_exits, "exit depths"),
    ):
        if count:
            yield (
                f"{count} requests have other {what} in some run than in the first, as near ties "
                "part in bfloat16."
            )
            yield ""
    yield from _arms_table(comparison)
    yield ""
    yield from _ratio_table(comparison)


def _arms_table(comparison: Comparison) -> Iterator[str]:
    """Pooled latencies, then every metric: median over runs [first quartile, third]."""
    names = [name for name in ARMS if name in comparison.arms]
    arms = [comparison.arms[name] for name in names]
    yield "Latencies pooled over all runs of an arm; the others: median over runs [quartiles]."
    yield ""
    yield from table_head("", [f"{name} {ARMS[name].title}" for name in names])
    for title, attribute in (
        ("ITL in windows", "window_itl"),
        ("ITL overall", "itl"),
        ("TTFT, prompts", "ttft_prompt"),
        ("TTFT, bystanders", "ttft_bystander"),
    ):
        if any(getattr(arm, attribute) for arm in arms):
            yield from latency_rows(title, [getattr(arm, attribute) for arm in arms])
    for metric in METRICS.values():
        cells = [metric_cell(arm.metrics.get(metric.name), metric.unit) for arm in arms]
        if any(cell != NOTHING for cell in cells):
            yield table_row(f"`{metric.name}`, {shown_unit(metric.unit)}", cells)


def _ratio_table(comparison: Comparison) -> Iterator[str]:
    names = [f"{first}/{second}" for first, second in COMPARISONS]
    names = [name for name in names if name in comparison.ratios]
    yield (
        f"Paired ratios: median over {comparison.num_pairs} pairs [quartiles]; of p99, the ratio "
        "of the pooled ones."
    )
    yield ""
    yield from table_head("", names)
    tails = [comparison.pooled_p99_ratios.get(name) for name in names]
    yield table_row("p99 of ITL in windows", list(map(number_cell, tails)))
    for metric in RATIOS:
        spreads = [comparison.ratios[name].get(metric) for name in names]
        if any(spreads):
            yield table_row(f"`{metric}`", [metric_cell(spread, "x") for spread in spreads])
