"""What one arm's run says, beside D0's of the same round; `METRICS` lists all that are shown.

As in `metrics`, a metric's docstring is its definition. The run that it is compared with is that of
the decoders alone. Words: the *period* lasts from the point of the first injection to the last
token; gaps are those of decoders. A *window* lasts from a prompt's injection to its first token; a
gap is in a window if some part of it is.
"""

from looped.engine.events import LaunchEvent
from looped.measure.statistics import percentile
from looped.record.timeline import item_depths
from looped.sched import ItemKind

from .. import metrics
from ..metrics import Metric, launches_of, mean_wait, percentile_of, token_loops_of
from ..runs import EngineRun, Run
from ..workload import BYSTANDER, DECODER, PROMPT


def window_itl_p50(run: Run, baseline: Run) -> float | None:
    """Median of the gaps in windows."""
    return percentile_of([gap.seconds for gap in run.window_gaps], 50)


def window_itl_p95(run: Run, baseline: Run) -> float | None:
    """95th percentile of the gaps in windows."""
    return percentile_of([gap.seconds for gap in run.window_gaps], 95)


def window_itl_max(run: Run, baseline: Run) -> float | None:
    """Largest gap in a window."""
    return percentile_of([gap.seconds for gap in run.window_gaps], 100)


def stall_factor(run: Run, baseline: Run) -> float | None:
    """Largest gap of the period / median gap of the decoders alone."""
    if not run.gaps:
        return None
    return max(gap.seconds for gap in run.gaps) / _median_gap(baseline)


def interference_per_prompt(run: Run, baseline: Run) -> float | None:
    """What one prompt costs one decoder: sum over the gaps in windows of (gap - median gap of the
    decoders alone) / (decoders * prompts)."""
    if not run.window_gaps:
        return None
    alone = _median_gap(baseline)
    delay = sum(gap.seconds - alone for gap in run.window_gaps)
    return delay / (run.workload.num_decoders * run.workload.num_prompts)


def seconds_per_prompt(run: Run, baseline: Run) -> float | None:
    """What one prompt costs the machine: (period - period of the decoders alone) / prompts."""
    if not (run.arm.has_decoders and run.arm.has_prompts):
        return None
    return (run.seconds - baseline.seconds) / run.workload.num_prompts


def tpot(run: Run, baseline: Run) -> float | None:
    """Time per output token: median over decoders of (last token - first token) / (tokens - 1)."""
    return percentile_of(run.times_per_output_token(run.names(DECODER)), 50)


def ttft_prompt(run: Run, baseline: Run) -> float | None:
    """Time to first token of the injected prompts: median of (first visible token - arrival)."""
    return percentile_of(run.first_token_latencies(PROMPT), 50)


def ttft_bystander(run: Run, baseline: Run) -> float | None:
    """Time to first token of the short requests that were queued right behind the prompts, median;
    none with bystander_tokens 0."""
    return percentile_of(run.first_token_latencies(BYSTANDER), 50)


def window_prompt_token_loops_per_second(run: Run, baseline: Run) -> float | None:
    """Prompt token-loops / seconds with at least one window open: how fast a prompt advances
    while it is there."""
    seconds = _seconds_in_windows(run)
    return token_loops_of(run, ItemKind.PROMPT) / seconds if seconds else None


def window_budget_fill(run: Run, baseline: Run) -> float | None:
    """Real rows / budget, mean over the launches in windows that run layers, in percent."""
    launches = [launch for launch in _in_windows(run) if launch.record.kind.runs_layers]
    if not launches:
        return None
    rows = sum(launch.record.num_rows for launch in launches)
    return 100 * rows / (len(launches) * run.options.max_num_batched_tokens)


def mixed_launches(run: Run, baseline: Run) -> float | None:
    """Launches with prompt and decode rows, in the whole run."""
    return float(sum(launch.record.is_mixed for launch in run.timeline.launches))


def prompt_depths_per_launch(run: Run, baseline: Run) -> float | None:
    """Distinct depths that prompt rows ran, mean over the launches with prompt rows in the
    period."""
    depths = []
    for launch in launches_of(run):
        items = [item for item in launch.record.items if item.kind is ItemKind.PROMPT]
        ran = {depth for item in items for depth in item_depths(launch.record, item)}
        if ran:
            depths.append(len(ran))
    return sum(depths) / len(depths) if depths else None


def prompt_token_loops_per_gap(run: Run, baseline: Run) -> float | None:
    """Prompt token-loops of the launches between two tokens of a decoder, mean over the gaps in
    windows."""
    loops = [run.timeline.prompt_loops_in(gap) for gap in run.window_gaps]
    return sum(loops) / len(loops) if loops else None


def prompt_token_loops_per_gap_max(run: Run, baseline: Run) -> float | None:
    """The most prompt token-loops between two tokens of a decoder, over the gaps in windows."""
    loops = [run.timeline.prompt_loops_in(gap) for gap in run.window_gaps]
    return float(max(loops)) if loops else None


def host_wait_with_tokens(run: EngineRun, baseline: EngineRun) -> float | None:
    """The same over those that brought tokens."""
    return _wait_of(run, brings_tokens=True)


def host_wait_without_tokens(run: EngineRun, baseline: EngineRun) -> float | None:
    """The same over those that brought none, since no row left that could have; none where exits
    are replayed."""
    return _wait_of(run, brings_tokens=False)


def _median_gap(baseline: Run) -> float:
    return percentile([gap.seconds for gap in baseline.gaps], 50)


def _seconds_in_windows(run: Run) -> float:
    """Length of the union of the windows."""
    seconds, reached = 0.0, float("-inf")
    for window in sorted(run.windows, key=lambda window: window.start):
        seconds += max(0.0, window.end - max(window.start, reached))
        reached = max(reached, window.end)
    return seconds


def _in_windows(run: Run) -> list[LaunchEvent]:
    """Launches that were started while a window was open, each once."""
    return [
        launch
        for launch in launches_of(run)
        if any(window.start <= launch.started < window.end for window in run.windows)
    ]


def _wait_of(run: EngineRun, *, brings_tokens: bool) -> float | None:
    return mean_wait(
        launch
        for launch in launches_of(run)
        if launch.record.num_readbacks and bool(launch.tokens) is brings_tokens
    )


METRICS: dict[str, Metric[Run]] = {
    measure.__name__: Metric(measure.__name__, unit, measure)
    for measure, unit in (
        (window_itl_p50, "s"),
        (window_itl_p95, "s"),
        (window_itl_max, "s"),
        (metrics.itl_p50, "s"),
        (metrics.itl_p95, "s"),
        (metrics.itl_max, "s"),
        (stall_factor, "x"),
        (interference_per_prompt, "s"),
        (seconds_per_prompt, "s"),
        (tpot, "s"),
        (ttft_prompt, "s"),
        (ttft_bystander, "s"),
        (metrics.output_tokens_per_second, "tokens/s"),
        (metrics.prompt_token_loops_per_second, "token-loops/s"),
        (window_prompt_token_loops_per_second, "token-loops/s"),
        (metrics.decode_token_loops_per_second, "token-loops/s"),
        (metrics.real_rows, "%"),
        (window_budget_fill, "%"),
        (metrics.launches_per_token, "launches/token"),
        (metrics.readbacks_per_token, "readbacks/token"),
        (metrics.later_launches_per_readback, "launches"),
        (metrics.ended_rows_per_token, "rows/token"),
        (mixed_launches, "launches"),
        (prompt_depths_per_launch, "depths"),
        (prompt_token_loops_per_gap, "token-loops"),
        (prompt_token_loops_per_gap_max, "token-loops"),
        (metrics.host_wait_per_readback, "s"),
        (host_wait_with_tokens, "s"),
        (host_wait_without_tokens, "s"),
        (metrics.host_wait_per_token, "s"),
        (metrics.host_gap, "s"),
    )
}
"""All of them, by name. Not to be written to."""


def measure(run: Run, baseline: Run) -> dict[str, float | None]:
    """Every metric of a run.

    Args:
        run: a valid one.
        baseline: the D0 run of its round.
    """
    return {name: metric.measure(run, baseline) for name, metric in METRICS.items()}
