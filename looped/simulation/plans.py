"""From a user's options to the workload that they mean: files are read and checked."""

from looped.errors import UsageError
from looped.exit_trace import read_exit_traces
from looped.launch_log import read_launch_log
from looped.sched import ExitMode, ExitOptions, RequestError, resolve_exit
from looped.timeline import Timeline

from .gate_depths import depths_of_request
from .options import WorkloadOptions
from .runs import WorkloadPlan
from .workload import Lengths, WorkloadRequest, read_workload, workload_of_log


def plan_of(options: WorkloadOptions, num_planes: int) -> WorkloadPlan:
    """Reads what files there are, and says what is to be run.

    Args:
        options: as the user gave them.
        num_planes: P of the cost table.

    Raises:
        LoopedError: a file that cannot be read, or options that contradict each other.
    """
    modes = (ExitMode.TRACE, ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD)
    if options.exit_mode not in modes:
        raise UsageError(f"exit mode must be one of {', '.join(modes)}; got {options.exit_mode!r}")
    plan = WorkloadPlan(
        num_planes=num_planes,
        exit_mode=ExitMode(options.exit_mode),
        requests=_requests(options),
        num_requests=options.requests,
        prompt_tokens=Lengths.parse(options.prompt_tokens),
        output_tokens=Lengths.parse(options.output_tokens),
        exits=options.exits,
        traces=_traces(options, num_planes),
        heterogeneity=options.heterogeneity,
        autocorrelation=options.autocorrelation,
        rate=options.rate,
        burstiness=options.burstiness,
        concurrency=options.concurrency,
    )
    plan.workload(seed=0)  # refuses contradictions before anything is run
    return plan


def _requests(options: WorkloadOptions) -> list[WorkloadRequest]:
    if options.workload is not None and options.from_log is not None:
        raise UsageError("--workload and --from-log both bring requests; give one")
    if options.from_log is not None:
        requests = workload_of_log(Timeline(read_launch_log(options.from_log).events))
        if not requests:
            raise UsageError(f"{options.from_log} holds no request that brought a token")
        return requests
    return [] if options.workload is None else read_workload(options.workload)


def _traces(options: WorkloadOptions, num_planes: int) -> list[tuple[int, ...]]:
    if options.exit_trace is not None and options.exit_gates is not None:
        raise UsageError("--exit-trace and --exit-gates both bring depths; give one")
    if options.exit_trace is not None:
        return read_exit_traces(options.exit_trace)
    if options.exit_gates is None:
        return []
    from looped.gate_record import read_gate_record

    record = read_gate_record(options.exit_gates)
    if record.probabilities.shape[1] != num_planes:
        raise UsageError(
            f"{options.exit_gates} is of a model of {record.probabilities.shape[1]} loops, the "
            f"cost table of one of {num_planes}"
        )
    try:
        rule = resolve_exit(
            ExitOptions(
                mode=ExitMode.OURO, threshold=options.exit_threshold, min_loops=options.min_loops
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
