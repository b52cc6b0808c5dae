"""One play of a closed loop at one threshold, and what it says.

Every metric is a function whose docstring is its definition. As in `metrics`, it takes a run and
the run that it is compared with: here that at threshold 1, in the same round. `THROUGHPUT_METRICS`
lists them all; docs/benchmarks.md is held to that list by a test.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from looped.measure.flop_bound import ParameterCounts
from looped.measure.statistics import percentile
from looped.record.timeline import Gap, Name, Window, token_loops
from looped.sched import ItemKind

from .. import metrics
from ..metrics import Metric
from ..runs import EngineRun
from ..workload import WorkItem
from .closed_loop import ClosedLoop

BASE_THRESHOLD = 1.0
"""Runs every loop; what early exit is measured against."""


@dataclass(frozen=True, kw_only=True)
class ThroughputRun(EngineRun):
    """Events of one closed loop."""

    loop: ClosedLoop
    parameters: ParameterCounts

    def __str__(self) -> str:
        return f"threshold {self.threshold:g} (round {self.place.round})"

    @property
    def threshold(self) -> float:
        return self.loop.exit_threshold

    def meta(self) -> dict[str, Any]:
        """What its launch log's header carries."""
        return {
            "place": asdict(self.place),
            "options": asdict(self.options),
            "loop": self.loop.to_json(),
            "parameters": asdict(self.parameters),
            "num_backend_compilations": self.num_backend_compilations,
        }

    @cached_property
    def items(self) -> list[WorkItem]:
        return self.loop.items

    @property
    def names(self) -> list[Name]:
        """Its requests, in the order in which they come."""
        return [(item.request_id, 0) for item in self.items]

    @cached_property
    def period(self) -> Window:
        """All of it: from the first arrival to the last token."""
        timeline = self.timeline
        return Window(
            min(request.time for request in timeline.requests.values()),
            max(tokens[-1].time for tokens in timeline.tokens.values()),
        )

    @cached_property
    def gaps(self) -> list[Gap]:
        """All gaps between tokens of a request."""
        return [gap for name in self.names for gap in self.timeline.gaps(name)]

    @cached_property
    def decode_loops(self) -> list[int]:
        """Loops of every token but the first of each request."""
        tokens = self.timeline.tokens
        return [one.token.exit_depth for name in self.names for one in tokens[name][1:]]

    @cached_property
    def num_output_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.timeline.tokens.values())

    @cached_property
    def num_token_loops(self) -> int:
        """Rows of prompts and decoding times passes."""
        return sum(
            token_loops(launch.record, kind)
            for launch in self.timeline.launches
            for kind in ItemKind
        )


def total_tokens_per_second(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Prompt and output tokens / period."""
    return (_num_prompt_tokens(run) + run.num_output_tokens) / run.seconds


def prompt_tokens_per_second(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Prompt tokens / period."""
    return _num_prompt_tokens(run) / run.seconds


def requests_per_second(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Requests / period."""
    return len(run.items) / run.seconds


def mean_decode_loops(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """d, mean loops of all tokens but the first of each request; none where there are no others."""
    return _mean(run.decode_loops)


def mean_loops(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Mean loops of all tokens, of which the first of each request run P."""
    first = len(run.items) * run.options.num_planes
    return (first + sum(run.decode_loops)) / run.num_output_tokens


def ttft_p50(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Median over requests of (first visible token - arrival)."""
    return percentile(run.time_to_first_tokens(run.names), 50)


def tpot_p50(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Median over requests of (last token - first token) / (tokens - 1); none with one token."""
    per_token = run.times_per_output_token(run.names)
    return percentile(per_token, 50) if per_token else None


def speed_up(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """Period at threshold 1 / period, prompts included; both emit the same number of tokens."""
    return baseline.seconds / run.seconds


def flop_bound(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """(F0 + P Fr) / (F0 + d Fr): how much faster decoding could be, prompts apart."""
    loops = _mean(run.decode_loops)
    if loops is None:
        return None
    return run.parameters.speed_up_bound(1, run.options.num_planes, loops)


def flop_bound_share(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """(speed_up - 1) / (flop_bound - 1); none where no token left early, as the bound is 1."""
    return _share(speed_up(run, baseline), flop_bound(run, baseline))


def flop_bound_ratio(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """speed_up / flop_bound."""
    bound = flop_bound(run, baseline)
    return None if bound is None else baseline.seconds / run.seconds / bound


def work_bound(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """The same with prompts in it, which run every loop at any threshold: (n F0 + a Fr) / (n F0 +
    b Fr) with n output tokens, a token-loops at threshold 1 and b token-loops of this run."""
    return run.parameters.speed_up_bound(
        run.num_output_tokens, baseline.num_token_loops, run.num_token_loops
    )


def work_bound_share(run: ThroughputRun, baseline: ThroughputRun) -> float | None:
    """(speed_up - 1) / (work_bound - 1); none where no token left early, as the bound is 1."""
    return _share(speed_up(run, baseline), work_bound(run, baseline))


def _num_prompt_tokens(run: ThroughputRun) -> int:
    return sum(len(item.prompt_token_ids) for item in run.items)


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def _share(measured: float | None, bound: float | None) -> float | None:
    if measured is None or bound is None or bound <= 1:
        return None
    return (measured - 1) / (bound - 1)


THROUGHPUT_METRICS: dict[str, Metric[ThroughputRun]] = {
    measure.__name__: Metric(measure.__name__, unit, measure)
    for measure, unit in (
        (metrics.output_tokens_per_second, "tokens/s"),
        (prompt_tokens_per_second, "tokens/s"),
        (total_tokens_per_second, "tokens/s"),
        (requests_per_second, "requests/s"),
        (mean_decode_loops, "loops"),
        (mean_loops, "loops"),
        (speed_up, "x"),
        (flop_bound, "x"),
        (flop_bound_share, "of 1"),
        (flop_bound_ratio, "of 1"),
        (work_bound, "x"),
        (work_bound_share, "of 1"),
        (ttft_p50, "s"),
        (tpot_p50, "s"),
        (metrics.itl_p50, "s"),
        (metrics.itl_p95, "s"),
        (metrics.itl_max, "s"),
        (metrics.prompt_token_loops_per_second, "token-loops/s"),
        (metrics.decode_token_loops_per_second, "token-loops/s"),
        (metrics.real_rows, "%"),
        (metrics.launches_per_token, "launches/token"),
        (metrics.readbacks_per_token, "readbacks/token"),
        (metrics.later_launches_per_readback, "launches"),
        (metrics.ended_rows_per_token, "rows/token"),
        (metrics.host_wait_per_readback, "s"),
        (metrics.host_wait_per_token, "s"),
        (metrics.host_gap, "s"),
    )
}
"""All of them, by name. Not to be written to."""
