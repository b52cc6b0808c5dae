"""What users say of a simulation, as fields that every command has options for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped.errors import UsageError
from looped.exit_trace import read_exit_traces
from looped.launch_log import read_launch_log
from looped.sched import ExitMode, ExitOptions, RequestError, resolve_exit
from looped.timeline import Timeline

from .gate_depths import depths_of_request
from .runs import WorkloadPlan
from .workload import Lengths, WorkloadRequest, read_workload, workload_of_log


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Which requests come, when, and how many loops their tokens run."""

    workload: Path | None = None
    """JSON lines with prompt_tokens, output_tokens and, if known, arrival_time and depths."""
    from_log: Path | None = None
    """Launch log whose requests are played again: arrivals, lengths and depths as they were."""
    requests: int = 200
    """Requests to make up."""
    prompt_tokens: str = "128"
    """Length of a made-up prompt: N, or FROM:TO for any between."""
    output_tokens: str = "64"
    """Tokens that a made-up request emits: N, or FROM:TO."""
    rate: float | None = None
    """Requests per second, as a Poisson process unless --burstiness says otherwise."""
    burstiness: float | None = None
    """Coefficient of variation of the gaps between arrivals (gamma distribution)."""
    concurrency: int | None = None
    """Requests under way at any time (a closed loop), instead of a rate."""
    exits: str = "typical"
    """Loops of a token: easy, typical, hard (means 2.25, 2.46, 2.58 of 4), mean:X, or full."""
    exit_mode: str = "trace"
    """How exits are decided: trace (known ahead, so nothing is read), or ouro, ouro_delayed or
    lookahead, which come to the same loops by signals that the host waits for."""
    heterogeneity: float = 0.25
    """Share of the variance of made-up depths that lies between requests, 0 to 1."""
    autocorrelation: float = 0.5
    """Of made-up depths, between neighbouring tokens of a request, 0 to below 1."""
    exit_trace: Path | None = None
    """JSON: recorded depths, one list a request, instead of --exits."""
    exit_gates: Path | None = None
    """Recorded gates (.npz), from which --exit-threshold makes depths: an approximation."""
    exit_threshold: float = 0.5
    """Of --exit-gates."""
    min_loops: int | None = None
    """Fewest loops, of --exit-gates. None: 2."""

    def plan(self, num_planes: int) -> WorkloadPlan:
        """Reads what files there are.

        Raises:
            LoopedError: a file that cannot be read, or options that contradict each other.
        """
        modes = (ExitMode.TRACE, ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD)
        if self.exit_mode not in modes:
            raise UsageError(f"exit mode must be one of {', '.join(modes)}; got {self.exit_mode!r}")
        plan = WorkloadPlan(
            num_planes=num_planes,
            exit_mode=ExitMode(self.exit_mode),
            requests=self._requests(),
            num_requests=self.requests,
            prompt_tokens=Lengths.parse(self.prompt_tokens),
            output_tokens=Lengths.parse(self.output_tokens),
            exits=self.exits,
            traces=self._traces(num_planes),
            heterogeneity=self.heterogeneity,
            autocorrelation=self.autocorrelation,
            rate=self.rate,
            burstiness=self.burstiness,
            concurrency=self.concurrency,
        )
        plan.workload(seed=0)  # refuses contradictions before anything is run
        return plan

    def _requests(self) -> list[WorkloadRequest]:
        if self.workload is not None and self.from_log is not None:
            raise UsageError("--workload and --from-log both bring requests; give one")
        if self.from_log is not None:
            requests = workload_of_log(Timeline(read_launch_log(self.from_log).events))
            if not requests:
                raise UsageError(f"{self.from_log} holds no request that brought a token")
            return requests
        return [] if self.workload is None else read_workload(self.workload)

    def _traces(self, num_planes: int) -> list[tuple[int, ...]]:
        if self.exit_trace is not None and self.exit_gates is not None:
            raise UsageError("--exit-trace and --exit-gates both bring depths; give one")
        if self.exit_trace is not None:
            return read_exit_traces(self.exit_trace)
        if self.exit_gates is None:
            return []
        from looped.gate_record import read_gate_record

        record = read_gate_record(self.exit_gates)
        if record.probabilities.shape[1] != num_planes:
            raise UsageError(
                f"{self.exit_gates} is of a model of {record.probabilities.shape[1]} loops, the "
                f"cost table of one of {num_planes}"
            )
        try:
            rule = resolve_exit(
                ExitOptions(
                    mode=ExitMode.OURO, threshold=self.exit_threshold, min_loops=self.min_loops
                ),
                ExitOptions(),
                num_planes,
            )
        except RequestError as error:
            raise UsageError(str(error)) from None
        traces = (
            depths_of_request(record.of_request(index), rule, num_planes)
            for index in range(len(record.offsets) - 1)
        )
        return [trace for trace in traces if trace]


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """The scheduler's sizes and limits, where they differ from the engine's defaults."""

    max_num_seqs: int = 16
    """Requests that may be active at once."""
    max_num_batched_tokens: int = 256
    """Rows that a launch may have: the budget."""
    prefill_chunk_size: int | None = None
    """Most prompt tokens in an item. None: min(128, budget - max_num_seqs + 1)."""
    max_decode_rows: int | None = None
    """Decode rows that a launch may have. None: all."""
    min_coda_batch_size: int | None = None
    """Rows worth an LM-head launch while other tokens are still in the loops. None: 1."""
    max_prefill_batches_before_decode: int | None = None
    """Prompt launches before a ready decode goes first. None: 1, where the policy uses it."""
    num_blocks: int | None = None
    """KV blocks, over all planes. None: enough for max_num_seqs of the longest requests."""
    block_size: int = 16
    """Positions in a KV block."""
    kv_watermark: int | None = None
    """Blocks kept free at admission while anything is active. None: 0."""

    def values(self) -> dict[str, Any]:
        """Those that are given, by the names of `SchedulerConfig`."""
        return {name: value for name, value in vars(self).items() if value is not None}


def parse_policy(text: str) -> dict[str, Any]:
    """Options of `SchedulerConfig` from `NAME` or `NAME:KEY=VALUE,KEY=VALUE`.

    Raises:
        UsageError: something else.
    """
    name, _, typed = text.partition(":")
    options = [tuple(word.split("=", 1)) for word in typed.split(",") if word]
    if not name or any(len(option) != 2 for option in options):
        raise UsageError(f"expected a policy as NAME or NAME:KEY=VALUE,KEY=VALUE; got {text!r}")
    return {"policy": name, "policy_options": tuple(options)}
