"""One simulated run: a workload, a scheduler's options and a cost table give a timeline.

A `WorkloadPlan` makes the workload of a seed; every policy that is tried on a seed gets the same
requests, arrivals and depths (common random numbers).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from looped.engine.events import EngineEvent, LogEvent
from looped.errors import UsageError
from looped.progress import progress_bars
from looped.record.launch_log import WAITS, LaunchLogWriter
from looped.record.timeline import Timeline
from looped.sched import (
    ConfigError,
    CostModel,
    ExitMode,
    RequestError,
    SchedulerConfig,
    SimulatedLaunch,
    Simulation,
    read_cost_table,
)

from .loads.depths import DepthSource, RecordedDepths, depth_source
from .loads.prompts import VOCAB_SIZE
from .loads.workload import Lengths, Workload, WorkloadRequest, fewest_loops, synthetic_requests
from .recording import record

OUTPUT_TOKENS = Lengths(64, 64)
"""Of a made-up request, if nothing says otherwise."""
ESTIMATE = "estimate"
"""The word that stands with every result of a cost table that was never measured."""
MOST_BLOCKS = 50_000_000
"""The pool keeps a number for each."""


@dataclass(frozen=True, kw_only=True)
class WorkloadPlan:
    """How to make a workload, but for the seed."""

    num_planes: int
    """P."""
    requests: Sequence[WorkloadRequest] = ()
    """Of a file or a log; none: made up."""
    log_engine: EngineEvent | None = None
    """Who served the requests of a log."""
    num_requests: int = 200
    """Requests to make up."""
    prompt_tokens: Lengths = field(default_factory=lambda: Lengths(128, 128))
    output_tokens: Lengths | None = None
    """Of made-up requests. None: as many as its recorded depths are, or 64 without any."""
    shared_prefix_tokens: int = 0
    """First tokens of a made-up prompt, which all of them begin with."""
    exits: str = "typical"
    """Depths of requests that bring none; see `depth_source`."""
    traces: Sequence[tuple[int, ...]] = ()
    """Recorded depths, instead of `exits`."""
    exit_mode: ExitMode = ExitMode.TRACE
    """How exits are decided; see `Workload`."""
    heterogeneity: float = 0.25
    autocorrelation: float = 0.5
    rate: float | None = None
    burstiness: float | None = None
    concurrency: int | None = None
    vocab_size: int = VOCAB_SIZE

    def workload(self, seed: int, *, rate: float | None = None) -> Workload:
        """The workload of a seed.

        Args:
            seed: of lengths, arrivals and depths.
            rate: instead of the plan's.

        Raises:
            UsageError: numbers that contradict each other or P.
        """
        return Workload(
            requests=self.requests or self._made_requests(seed),
            depths=self._depths(seed),
            num_planes=self.num_planes,
            exit_mode=self.exit_mode,
            seed=seed,
            rate=self.rate if rate is None else rate,
            burstiness=self.burstiness,
            concurrency=self.concurrency,
            vocab_size=self.vocab_size,
        )

    def _made_requests(self, seed: int) -> list[WorkloadRequest]:
        made = synthetic_requests(
            self.num_requests,
            self.prompt_tokens,
            self.output_tokens or OUTPUT_TOKENS,
            seed=seed,
            shared_prefix_tokens=self.shared_prefix_tokens,
        )
        if self.output_tokens is not None or not self.traces:
            return made
        return [
            replace(one, output_tokens=len(self.traces[index % len(self.traces)]))
            for index, one in enumerate(made)
        ]

    def _depths(self, seed: int) -> DepthSource:
        if self.traces:
            return RecordedDepths(self.traces, self.num_planes)
        return depth_source(
            self.exits,
            self.num_planes,
            seed=seed,
            heterogeneity=self.heterogeneity,
            autocorrelation=self.autocorrelation,
            fewest=min(fewest_loops(self.exit_mode), self.num_planes),
        )

    @property
    def depends_on_seed(self) -> bool:
        """Whether two seeds give two workloads; else runs of several are copies of one."""
        return self.workload(0).facts != self.workload(1).facts

    @property
    def _is_made_up(self) -> bool:
        """Whether there are depths to make up."""
        brings_none = not self.requests or any(one.depths is None for one in self.requests)
        return brings_none and not self.traces

    def _exits_told(self) -> str:
        if self.requests and all(one.depths is not None for one in self.requests):
            return "the requests' own"
        told = f"{len(self.traces)} recorded traces" if self.traces else self.exits
        if self._is_made_up and fewest_loops(self.exit_mode) > 1:
            told += f", raised to {fewest_loops(self.exit_mode)} or more"
        if any(one.depths is not None for one in self.requests):
            told += ", where a request brings none"
        return told

    def _output_tokens_told(self) -> str:
        if self.output_tokens is None and self.traces:
            return "of the recorded depths"
        lengths = self.output_tokens or OUTPUT_TOKENS
        return f"{lengths.shortest}:{lengths.longest}"

    def to_json(self) -> dict[str, Any]:
        """What was run, for the record."""
        is_made = not self.requests
        has_rules = not is_made and all(one.exit_rule is not None for one in self.requests)
        made_up = {
            "prompt_tokens": f"{self.prompt_tokens.shortest}:{self.prompt_tokens.longest}",
            "output_tokens": self._output_tokens_told(),
            "shared_prefix_tokens": self.shared_prefix_tokens,
        }
        return {
            "num_requests": self.num_requests if is_made else len(self.requests),
            **(made_up if is_made else {}),
            "exits": self._exits_told(),
            "exit_mode": "the requests' own" if has_rules else str(self.exit_mode),
            "heterogeneity": self.heterogeneity if self._is_made_up else None,
            "autocorrelation": self.autocorrelation if self._is_made_up else None,
            "rate": self.rate,
            "burstiness": self.burstiness,
            "concurrency": self.concurrency,
        }


def cost_table(name_or_path: str | Path) -> CostModel:
    """A cost table by name or path; UsageError if there is none."""
    try:
        return read_cost_table(name_or_path)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def scheduler_config(workload: Workload, options: Mapping[str, Any]) -> SchedulerConfig:
    """A scheduler's configuration with room for the workload.

    Args:
        workload: says P and the longest request.
        options: of `SchedulerConfig`, by name; None leaves one out. Left out, the pool has blocks
            for `max_num_seqs` of the longest requests.

    Raises:
        UsageError: options that contradict each other.
    """
    given = {name: value for name, value in options.items() if value is not None}
    block_size = given.get("block_size", SchedulerConfig.block_size)
    max_num_seqs = given.get("max_num_seqs", SchedulerConfig.max_num_seqs)
    blocks = workload.num_planes * -(-workload.longest // max(block_size, 1)) * max_num_seqs
    sizes = {"num_blocks": max(blocks, workload.num_planes), "max_model_len": workload.longest}
    if (num_blocks := (sizes | given)["num_blocks"]) > MOST_BLOCKS:
        raise UsageError(
            f"expected at most {MOST_BLOCKS:,} KV blocks, got {num_blocks:,}; try a smaller "
            "--num-blocks, fewer --max-num-seqs, shorter requests or a larger --block-size"
        )
    try:
        return SchedulerConfig(
            num_planes=workload.num_planes, vocab_size=workload.vocab_size, **(sizes | given)
        )
    except ConfigError as error:
        raise UsageError(str(error)) from None


def simulate(
    workload: Workload,
    config: SchedulerConfig,
    costs: CostModel,
    *,
    sink: Callable[[LogEvent], None] | None = None,
    on_launch: Callable[[SimulatedLaunch], None] | None = None,
    is_deterministic: bool = False,
    waits_for_device: bool = False,
) -> Timeline:
    """Runs a workload to its end.

    Args:
        workload: the requests.
        config: of the scheduler.
        costs: seconds of launches.
        sink: takes the events of the launch log as well.
        on_launch: is told of every launch, to show progress.
        is_deterministic: as `--deterministic` of an engine has it.
        waits_for_device: whether the host waits for every launch, as with `--launch-log-waits`.

    Raises:
        UsageError: a request that could never run, or costs of another P.
    """
    if costs.num_planes != workload.num_planes:
        raise UsageError(
            f"cost table {costs.name} is of a model of {costs.num_planes} loops, the workload of "
            f"one of {workload.num_planes}"
        )
    events: list[LogEvent] = []

    def keep(event: LogEvent) -> None:
        events.append(event)
        if sink is not None:
            sink(event)

    simulation = Simulation(
        config,
        workload.arrivals(),
        costs,
        is_deterministic=is_deterministic,
        waits_for_device=waits_for_device,
    )
    try:
        for launch in record(simulation, keep):
            if on_launch is not None:
                on_launch(launch)
    except RequestError as error:
        raise UsageError(str(error)) from None
    return Timeline(events)


def simulate_logged(
    workload: Workload,
    config: SchedulerConfig,
    costs: CostModel,
    launch_log: Path | None,
    *,
    is_deterministic: bool = False,
    waits_for_device: bool = False,
) -> Timeline:
    """Runs a workload as `simulate` does, with a progress bar and a launch log.

    Args:
        launch_log: the file to write; None writes none.
        workload, config, costs, is_deterministic, waits_for_device: as of `simulate`.

    Raises:
        UsageError: as `simulate` has it.
    """
    writer = None
    if launch_log is not None:
        seed = workload.seed
        writer = log_writer(launch_log, costs, seed=seed, waits_for_device=waits_for_device)
    try:
        with progress_bars() as bars:
            bar = bars.add_task("simulating", total=len(workload.requests))
            return simulate(
                workload,
                config,
                costs,
                sink=None if writer is None else writer.write,
                is_deterministic=is_deterministic,
                waits_for_device=waits_for_device,
                on_launch=lambda launch: bars.advance(bar, len(launch.update.finished)),
            )
    finally:
        if writer is not None:
            writer.close()


def log_writer(
    path: Path, costs: CostModel, *, seed: int, waits_for_device: bool = False
) -> LaunchLogWriter:
    """A launch log for a simulated run, which says that it is one."""
    kind = f"simulated, {ESTIMATE}" if costs.is_estimate else "simulated"
    meta: dict[str, Any] = {
        "kind": kind,
        "cost_table": costs.name,
        "source": costs.source,
        "seed": seed,
    }
    meta[WAITS] = waits_for_device
    return LaunchLogWriter(path, meta)
