"""What a run of a load says: latencies, goodput, backlog, failures, and whether it counts."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from looped.errors import UsageError
from looped.measure.backlog import backlog_growth, backlogs, is_bounded
from looped.measure.statistics import Latencies
from looped.measure.violation import Violation

from .load_run import LoadRun
from .served_request import Failure, Objective

UNLOADED_BACKLOG = 1.1
"""Up to this mean backlog a request has the server to itself: one that comes counts as one."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What is asked of a run."""

    objective: Objective
    share: float = 0.9
    """Of all requests that must meet the objective in a run that is sustained."""
    max_lag: float = 0.1
    """Seconds that the client may be late, with a request or in reading."""
    max_queue: float = 2.0
    """Seconds that the median request may wait for its first launch in a run that is sustained."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not self.max_lag > 0 or not self.max_queue > 0:
            raise UsageError(
                "expected a share above 0 and at most 1, a lag and a queue above 0; got "
                f"{self.share}, {self.max_lag} and {self.max_queue}"
            )

    @property
    def has_objective(self) -> bool:
        return self.objective != Objective()


@dataclass(frozen=True, kw_only=True)
class LoadSummary:
    """One run. Latencies, in seconds, are those of requests that ended well."""

    name: str
    rate: float
    """Requests per second, the mean of the process that the arrivals were drawn from."""
    arrived_rate: float
    """Requests / last arrival, which is what the draw came to."""
    num_requests: int
    seconds: float
    """From the start of the clock to the last end."""
    ttft: Latencies | None
    itl: Latencies | None
    """All requests' gaps between chunks, pooled."""
    tpot: Latencies | None
    latency: Latencies | None
    normalised_latency: Latencies | None
    requests_per_second: float
    """That ended well."""
    output_tokens_per_second: float
    """Of all requests, also of those that failed later."""
    prompt_tokens_per_second: float
    """Of requests that ended well."""
    tokens_per_chunk: float | None
    attainment: float
    """Share of all requests, failed ones included, that met the objective."""
    goodput: float
    """Requests per second that met the objective."""
    backlog_at_last: int
    """Requests sent and not over when the last one was due, that one included."""
    mean_backlog: float
    """Over all arrivals."""
    backlog_growth: tuple[float, float] | None
    """Mean backlog at the arrivals of the second and of the last quarter."""
    waiting_at_last: int | None
    """Of those, the ones without a slot, where the server says so."""
    queue_p50: float | None
    """Seconds from arrival to the first launch, median; None if no request ended well."""
    is_queue_counted: bool
    """Whether the server says so; else it is the median TTFT, which the queue is a part of."""
    failures: dict[str, int]
    failure_details: dict[str, str]
    """The first of each kind in words."""
    lag: Latencies | None
    """How late the client was, over all requests."""
    lateness: Latencies | None
    """How late its event loop was, over looks at it."""
    client_load: float
    """CPU time of the client / seconds: near 1 it reads late, and its gaps are not the server's."""
    counted: dict[str, int]
    """By how much the server's counters rose."""
    violations: list[Violation]
    is_sustained: bool
    """Valid, enough requests met the objective, the backlog is bounded and the queue short."""

    @property
    def is_valid(self) -> bool:
        return not self.violations

    @property
    def is_limited_by_client(self) -> bool:
        """Whether the client failed, so that the run says nothing about the server."""
        names = {rule.__name__ for rule in CLIENT_RULES}
        return any(broken.rule in names for broken in self.violations)

    @property
    def is_hopeless(self) -> bool:
        """Whether a lower rate could not help: nothing ended well, or requests were alone."""
        is_alone = self.mean_backlog <= UNLOADED_BACKLOG
        return not self.is_limited_by_client and (is_alone or not self.requests_per_second)

    @property
    def is_backlog_bounded(self) -> bool:
        return is_bounded(self.backlog_growth, self.num_requests)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "is_valid": self.is_valid,
            "is_backlog_bounded": self.is_backlog_bounded,
        }


def summarise_run(run: LoadRun, judgement: Judgement) -> LoadSummary:
    """Measures and judges a run."""
    requests = run.requests
    well = [request for request in requests if request.failure is None]
    seconds = max(request.ended for request in requests)
    num_good = sum(request.meets(judgement.objective) for request in requests)
    num_chunks = sum(len(request.chunk_times) for request in well)
    growth = backlog_growth(requests)
    violations = [
        Violation(rule.__name__, run.name, message)
        for rule in RULES
        for message in rule(run, judgement)
    ]
    attainment = num_good / len(requests)
    counts = backlogs(requests)
    first_tokens = [r.ttft for r in well if r.ttft is not None]
    queue = run.median_queue
    if queue is None and first_tokens:
        queue = median(first_tokens)
    is_queue_short = queue is not None and queue <= judgement.max_queue
    details: dict[str, str] = {}
    for request in requests:
        if request.failure_kind is not None:
            details.setdefault(request.failure_kind, request.detail)
    return LoadSummary(
        name=run.name,
        rate=run.rate,
        arrived_rate=len(requests) / max(request.arrival for request in requests),
        num_requests=len(requests),
        seconds=seconds,
        ttft=Latencies.of(first_tokens),
        itl=Latencies.of([gap for request in well for gap in request.gaps]),
        tpot=Latencies.of([r.tpot for r in well if r.tpot is not None]),
        latency=Latencies.of([request.latency for request in well]),
        normalised_latency=Latencies.of(
            [r.normalised_latency for r in well if r.normalised_latency is not None]
        ),
        requests_per_second=len(well) / seconds,
        output_tokens_per_second=sum(request.output_tokens for request in requests) / seconds,
        prompt_tokens_per_second=sum(request.prompt_tokens for request in well) / seconds,
        tokens_per_chunk=sum(r.output_tokens for r in well) / num_chunks if num_chunks else None,
        attainment=attainment,
        goodput=num_good / seconds,
        backlog_at_last=counts[-1],
        mean_backlog=fmean(counts),
        backlog_growth=growth,
        waiting_at_last=run.waiting_at_last,
        queue_p50=queue,
        is_queue_counted=run.median_queue is not None,
        failures=dict(Counter(r.failure_kind for r in requests if r.failure_kind is not None)),
        failure_details=details,
        lag=Latencies.of([request.lag for request in requests]),
        lateness=Latencies.of(run.lateness),
        client_load=run.client_seconds / seconds,
        counted=run.counted,
        violations=violations,
        is_sustained=not violations
        and attainment >= judgement.share
        and is_bounded(growth, len(requests))
        and is_queue_short,
    )


def client_in_time(run: LoadRun, judgement: Judgement) -> Iterator[str]:
    """The client sent every request in time: else the arrivals were not those of the list."""
    late = [request for request in run.requests if request.lag > judgement.max_lag]
    if late:
        worst = max(late, key=lambda request: request.lag)
        yield (
            f"expected every request to be sent within {judgement.max_lag:g} s of its arrival, but "
            f"{len(late)} of {len(run.requests)} were later, request {worst.index} by "
            f"{worst.lag:.3f} s; give the client a core, or lower the rate"
        )


def client_reads_in_time(run: LoadRun, judgement: Judgement) -> Iterator[str]:
    """Its event loop never stood still: else gaps that it saw were its own."""
    largest = max(run.lateness, default=0.0)
    if largest > judgement.max_lag:
        yield (
            f"expected the client's event loop never to be later than {judgement.max_lag:g} s, but "
            f"it was by {largest:.3f} s; give the client a core, or lower the rate"
        )


def client_has_sockets(run: LoadRun, judgement: Judgement) -> Iterator[str]:
    """It could ask for everything: else requests that the server never saw count as failed."""
    count = sum(request.failure is Failure.NO_SOCKET for request in run.requests)
    if count:
        yield f"{count} requests were not sent, for want of sockets; raise the limit (ulimit -Hn)"


def some_request_ends_well(run: LoadRun, judgement: Judgement) -> Iterator[str]:
    """At least one request ended well: else there is nothing to measure."""
    if all(request.failure is not None for request in run.requests):
        first = run.requests[0]
        yield (
            f"expected requests that end well, but all {len(run.requests)} failed; request "
            f"{first.index}: {first.failure}: {first.detail}"
        )


CLIENT_RULES = (client_in_time, client_reads_in_time, client_has_sockets)
"""What the client must keep, so that a run is one of the server."""
RULES = (*CLIENT_RULES, some_request_ends_well)
"""What a run must keep."""
