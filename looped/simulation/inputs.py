"""From a user's options to the workload that they mean: files are read and checked."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looped.engine.events import EngineEvent, LogEvent
from looped.errors import UsageError
from looped.record.exit_trace import read_exit_traces
from looped.record.launch_log import read_launch_log
from looped.sched import ExitMode, ExitOptions, RequestError, SchedulerConfig, resolve_exit

from .configs import differences
from .loads.gate_depths import depths_of_request
from .loads.log_workload import workload_of_log
from .loads.workload import Lengths, WorkloadRequest, check_rate
from .loads.workload_file import read_workload
from .options import SimulationOptions, WorkloadOptions
from .runs import WorkloadPlan

logger = logging.getLogger(__name__)


def plan_of(options: WorkloadOptions, num_planes: int) -> WorkloadPlan:
    """Reads what files there are, and says what is to be run.

    Args:
        options: as the user gave them.
        num_planes: P of the cost table.

    Raises:
        LoopedError: a file that cannot be read, or options that contradict each other.
    """
    _check_alone(options)
    check_rate(options.rate)
    modes = (ExitMode.TRACE, ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD)
    if options.exit_mode is not None and options.exit_mode not in modes:
        raise UsageError(f"exit mode must be one of {', '.join(modes)}; got {options.exit_mode!r}")
    lengths = {
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
    }
    given: dict[str, Any] = {
        "num_requests": options.requests,
        "shared_prefix_tokens": options.shared_prefix_tokens,
        **{name: Lengths.parse(text) for name, text in lengths.items() if text is not None},
        "exits": options.exits,
        "exit_mode": None if options.exit_mode is None else ExitMode(options.exit_mode),
        "heterogeneity": options.heterogeneity,
        "autocorrelation": options.autocorrelation,
    }
    log = None if options.from_log is None else read_launch_log(options.from_log).events
    requests = _requests(options, log, num_planes)
    if requests and all(one.depths is not None for one in requests):
        _refuse(options, "requests that all bring their depths", DEPTHS)
    plan = WorkloadPlan(
        num_planes=num_planes,
        requests=requests,
        log_engine=next((one for one in log or () if isinstance(one, EngineEvent)), None),
        traces=_traces(options, num_planes),
        rate=options.rate,
        burstiness=options.burstiness,
        concurrency=options.concurrency,
        **{name: value for name, value in given.items() if value is not None},
    )
    workload = plan.workload(seed=0)
    workload.check_depths()  # refuses contradictions before anything is run
    if share := workload.share_past_end:
        logger.warning(
            "%.3g %% of the tokens lie past the end of their recorded depths and run all %d loops; "
            "%s",
            100 * share,
            num_planes,
            "shorten the requests, or record longer ones"
            if requests
            else "leave out --output-tokens for requests as long as their depths",
        )
    return plan


def seeds_of(plan: WorkloadPlan, count: int) -> range:
    """Seeds to run a plan on: so many, or one if more would be copies of it, which is said."""
    if count > 1 and not plan.depends_on_seed:
        logger.warning(
            "no part of this workload is drawn at random: it runs once instead of %d times, and "
            "there is no interval",
            count,
        )
        return range(1)
    return range(count)


def warn_of_log(
    plan: WorkloadPlan,
    scheduler: SimulationOptions,
    configs: Sequence[SchedulerConfig],
    *,
    is_deterministic: bool,
) -> None:
    """Says how a log's engine differs from what is simulated on its requests.

    Args:
        plan: of the log, or another one, of which there is nothing to say.
        scheduler: as the user gave them.
        configs: that are simulated.
        is_deterministic: how.
    """
    if plan.log_engine is None:
        return
    told = differences(
        plan.log_engine,
        configs,
        is_deterministic=is_deterministic,
        has_blocks=scheduler.num_blocks is not None,
    )
    if told:
        logger.warning("--from-log takes requests alone; the log's engine had %s", "; ".join(told))


def warn_of_chunks(configs: Sequence[SchedulerConfig]) -> None:
    """Says, once each, which chunks came out smaller than is useful."""
    for warning in dict.fromkeys(config.chunk_warning for config in configs):
        if warning is not None:
            logger.warning("%s", warning)


MADE_REQUESTS = ("requests", "prompt_tokens", "output_tokens", "shared_prefix_tokens")
MADE_DEPTHS = ("exits", "heterogeneity", "autocorrelation")
GATES = ("exit_threshold", "min_loops")
DEPTHS = (*MADE_DEPTHS, "exit_trace", "exit_gates", *GATES)
"""Options by what they are about."""


def _check_alone(options: WorkloadOptions) -> None:
    """UsageError for options of which one leaves the other nothing to say."""
    if options.workload is not None and options.from_log is not None:
        raise UsageError("--workload and --from-log both bring requests; give one")
    if options.exit_trace is not None and options.exit_gates is not None:
        raise UsageError("--exit-trace and --exit-gates both bring depths; give one")
    if options.workload is not None:
        _refuse(options, "--workload, which brings requests", MADE_REQUESTS)
    if options.from_log is not None:
        about = "--from-log, which brings requests, their depths and how they were decided"
        _refuse(options, about, (*MADE_REQUESTS, *DEPTHS, "exit_mode"))
    if options.exit_trace is not None:
        _refuse(options, "--exit-trace, which brings depths", MADE_DEPTHS)
    if options.exit_gates is not None:
        _refuse(options, "--exit-gates, which bring depths", MADE_DEPTHS)
    elif given := [name for name in GATES if getattr(options, name) is not None]:
        raise UsageError(f"{_flag(given[0])} needs --exit-gates")
    if options.exits == "full":
        _refuse(options, "--exits full, which draws no depths", MADE_DEPTHS[1:])


def _refuse(options: WorkloadOptions, beside: str, names: Sequence[str]) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise UsageError(f"{_flag(name)} means nothing with {beside}; leave it out")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _requests(
    options: WorkloadOptions, log: Sequence[LogEvent] | None, num_planes: int
) -> list[WorkloadRequest]:
    if log is not None:
        requests = workload_of_log(log, num_planes)
        if not requests:
            raise UsageError(f"{options.from_log} holds no request that brought a token")
        return requests
    return [] if options.workload is None else read_workload(options.workload)


def _traces(options: WorkloadOptions, num_planes: int) -> list[tuple[int, ...]]:
    """Recorded depths; a request without any ran all loops, as `--exit-trace` of the engine has it.

    Only a request that failed before its first token brings none.
    """
    if options.exit_trace is not None:
        traces = read_exit_traces(options.exit_trace)
    elif options.exit_gates is not None:
        traces = _gate_depths(options, options.exit_gates, num_planes)
    else:
        return []
    if not traces:
        file = options.exit_trace or options.exit_gates
        raise UsageError(f"{file} holds no request, so no depths")
    return [trace or (num_planes,) for trace in traces]


def _gate_depths(options: WorkloadOptions, file: Path, num_planes: int) -> list[tuple[int, ...]]:
    from looped.record.gate_record import read_gate_record

    record = read_gate_record(file)
    if record.probabilities.shape[1] != num_planes:
        raise UsageError(
            f"{file} is of a model of {record.probabilities.shape[1]} loops, the "
            f"cost table of one of {num_planes}"
        )
    try:
        rule = resolve_exit(
            ExitOptions(
                mode=ExitMode.OURO,
                threshold=0.5 if options.exit_threshold is None else options.exit_threshold,
                min_loops=options.min_loops,
            ),
            ExitOptions(),
            num_planes,
        )
    except RequestError as error:
        raise UsageError(str(error)) from None
    return [
        depths_of_request(record.of_request(index), rule, num_planes)
        for index in range(len(record.offsets) - 1)
    ]
