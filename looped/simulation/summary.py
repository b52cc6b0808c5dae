"""What a whole run says, from its launch log: the same numbers of an engine and of a simulation.

A *gap* is the time between two consecutive tokens of a request (inter-token latency, ITL), and
*token-loops* are rows times passes over the layers. The run lasts from the first arrival to the
last token; nothing is left out at its ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from looped.errors import LoopedError
from looped.measure.statistics import Latencies, Numbers
from looped.record.timeline import Name, Timeline, token_loops
from looped.sched import LAUNCH_KINDS, ItemKind, LaunchKind

UNITS = {
    "makespan": "s",
    "ttft_p50": "s",
    "ttft_p95": "s",
    "ttft_p99": "s",
    "itl_p50": "s",
    "itl_p95": "s",
    "itl_p99": "s",
    "itl_max": "s",
    "latency_p50": "s",
    "latency_p95": "s",
    "requests_per_second": "requests/s",
    "output_tokens_per_second": "tokens/s",
    "prompt_token_loops_per_second": "token-loops/s",
    "decode_token_loops_per_second": "token-loops/s",
    "loops_per_token": "loops",
    "rows_per_pass": "rows",
    "real_rows": "%",
    "launches": "",
    **{f"{kind.name.lower()}_launches": "" for kind in LAUNCH_KINDS},
    "heads": "",
}
"""Every number of a summary, in order, with its unit."""


@dataclass(frozen=True)
class Summary:
    """Latencies and rates of one run."""

    ttft: Latencies | None
    """From a request's arrival to its first token; None without tokens."""
    itl: Latencies | None
    """Gaps, pooled over requests; None without any."""
    latency: Latencies | None
    """From a request's arrival to its end."""
    makespan: float
    """From the first arrival to the last result, seconds."""
    num_requests: int
    num_output_tokens: int
    num_loops: int
    """Loops of all output tokens."""
    prompt_token_loops: int
    decode_token_loops: int
    num_launches: dict[LaunchKind, int]
    num_heads: int
    """Launches that an LM head followed."""
    num_rows: int
    """Real rows of launches over the layers, once a pass."""
    num_bucket_rows: int
    """The same, padding included."""
    num_passes: int

    @classmethod
    def of(cls, timeline: Timeline, arrivals: Mapping[Name, float] | None = None) -> "Summary":
        """Sums up a run.

        Args:
            timeline: of one engine or simulation.
            arrivals: when each request came, for an engine whose log says only when it could look
                at its queue; on the log's clock.

        Raises:
            LoopedError: the log has no request or no launch.
        """
        launches = timeline.launches
        if not launches or not timeline.requests:
            raise LoopedError("expected a log with requests and launches; it has none to sum up")
        came = {
            name: event.time if arrivals is None else arrivals[name]
            for name, event in timeline.requests.items()
        }
        firsts = {name: timeline.first_token_time(name) for name in came}
        gaps = [gap.seconds for name in timeline.tokens for gap in timeline.gaps(name)]
        passes = [launch.record for launch in launches if launch.record.kind.runs_layers]
        tokens = [token.token for own in timeline.tokens.values() for token in own]
        return cls(
            ttft=Latencies.of(
                [first - came[name] for name, first in firsts.items() if first is not None]
            ),
            itl=Latencies.of(gaps),
            latency=Latencies.of([end.time - came[name] for name, end in timeline.ends.items()]),
            makespan=max(launch.visible for launch in launches) - min(came.values()),
            num_requests=len(came),
            num_output_tokens=len(tokens),
            num_loops=sum(token.exit_depth for token in tokens),
            prompt_token_loops=sum(token_loops(record, ItemKind.PROMPT) for record in passes),
            decode_token_loops=sum(token_loops(record, ItemKind.DECODE) for record in passes),
            num_launches={
                kind: sum(launch.record.kind is kind for launch in launches)
                for kind in LAUNCH_KINDS
            },
            num_heads=sum(launch.record.head is not None for launch in launches),
            num_rows=sum(record.token_loops for record in passes),
            num_bucket_rows=sum(record.bucket * record.num_passes for record in passes),
            num_passes=sum(record.num_passes for record in passes),
        )

    @property
    def numbers(self) -> Numbers:
        """By the names of `UNITS`; None where the run has too little to say."""
        seconds = self.makespan
        counts = {
            f"{kind.name.lower()}_launches": float(count)
            for kind, count in self.num_launches.items()
        }
        return {
            "makespan": seconds,
            **_percentiles("ttft", self.ttft, "p50", "p95", "p99"),
            **_percentiles("itl", self.itl, "p50", "p95", "p99"),
            "itl_max": None if self.itl is None else self.itl.largest,
            **_percentiles("latency", self.latency, "p50", "p95"),
            "requests_per_second": _ratio(self.num_requests, seconds),
            "output_tokens_per_second": _ratio(self.num_output_tokens, seconds),
            "prompt_token_loops_per_second": _ratio(self.prompt_token_loops, seconds),
            "decode_token_loops_per_second": _ratio(self.decode_token_loops, seconds),
            "loops_per_token": _ratio(self.num_loops, self.num_output_tokens),
            "rows_per_pass": _ratio(self.num_rows, self.num_passes),
            "real_rows": _ratio(100 * self.num_rows, self.num_bucket_rows),
            "launches": float(sum(self.num_launches.values())),
            **counts,
            "heads": float(self.num_heads),
        }


def _percentiles(name: str, latencies: Latencies | None, *percentiles: str) -> Numbers:
    return {
        f"{name}_{percentile}": None if latencies is None else getattr(latencies, percentile)
        for percentile in percentiles
    }


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
