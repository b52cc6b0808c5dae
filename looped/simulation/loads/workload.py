"""What simulated requests ask for and when they come: made up, or as a file or a log says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from looped.errors import UsageError
from looped.measure.arrivals import arrival_times
from looped.sched import (
    Arrival,
    Arrivals,
    ClosedArrivals,
    ExitMode,
    ExitOptions,
    ExitRule,
    Request,
    RequestError,
    SimulatedOutput,
    TimedArrivals,
    resolve_exit,
)

from .depths import DepthSource, RecordedDepths
from .prompts import VOCAB_SIZE, prompt_of

MOST_REQUESTS = 1_000_000
MOST_REQUEST_TOKENS = 10_000_000
"""Prompt and output of one request."""
MOST_TOKENS = 1_000_000_000
"""Of a whole workload: each is kept, as a number of some bytes."""
LEAST_RATE, MOST_RATE = 1e-6, 1e9
"""Requests per second that a user may ask for; a search may go beyond."""


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request, without its tokens."""

    prompt_tokens: int
    output_tokens: int
    """Emitted exactly."""
    arrival_time: float | None = None
    """Seconds from the start of the run; None: to be made up."""
    depths: tuple[int, ...] | None = None
    """Loops of each output token, the first P; None: to be made up."""
    exit_rule: ExitRule | None = None
    """How they are decided, of a request that was recorded; None: as the workload says."""
    priority: int = 0
    """Lower goes first, where the scheduler asks."""
    shared_prefix_tokens: int = 0
    """Of one common text, how much a made-up prompt begins with."""
    prompt_token_ids: tuple[int, ...] | None = None
    """Stand for those of a request that was recorded; None: to be made up."""
    earlier_samples: tuple[int, ...] = ()
    """Requests of the workload, by index, that are samples of the same prompt and come before."""


@dataclass(frozen=True)
class Lengths:
    """A length, or whole numbers between two, each as likely."""

    shortest: int
    longest: int

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """From `N` or `FROM:TO`; UsageError for anything else."""
        first, _, last = text.partition(":")
        try:
            lengths = cls(int(first), int(last or first))
        except ValueError:
            raise UsageError(f"expected a length N or a range FROM:TO, got {text!r}") from None
        if not 1 <= lengths.shortest <= lengths.longest:
            raise UsageError(f"a range of lengths must begin at 1 or more and go up, got {text!r}")
        return lengths

    def draw(self, random: Random) -> int:
        """One of them."""
        return random.randint(self.shortest, self.longest)


def synthetic_requests(
    count: int,
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    *,
    seed: int,
    shared_prefix_tokens: int = 0,
) -> list[WorkloadRequest]:
    """Requests whose lengths are drawn independently; the draws depend on the seed alone.

    Raises:
        UsageError: no request, or a prompt that would have no token of its own.
    """
    _check_count(count)
    if not 0 <= shared_prefix_tokens < prompt_tokens.shortest:
        raise UsageError(
            "shared_prefix_tokens must be 0 or more and below the shortest prompt, which has a "
            f"token of its own: got {shared_prefix_tokens}, and prompts from "
            f"{prompt_tokens.shortest}; try longer ones (--prompt-tokens)"
        )
    random = Random(f"{seed}/lengths")
    return [
        WorkloadRequest(
            prompt_tokens.draw(random),
            output_tokens.draw(random),
            shared_prefix_tokens=shared_prefix_tokens,
        )
        for _ in range(count)
    ]


def _check_count(count: int) -> None:
    if not 1 <= count <= MOST_REQUESTS:
        raise UsageError(f"expected 1 to {MOST_REQUESTS:,} requests, got {count:,}")


def check_rate(rate: float | None) -> None:
    """UsageError for a rate of a user that no clock is made for; None is none."""
    if rate is not None and not LEAST_RATE <= rate <= MOST_RATE:
        raise UsageError(
            f"expected a rate above 0, from {LEAST_RATE:g} to {MOST_RATE:g} requests per second; "
            f"got {rate:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests and how they come; the same for every policy that it is tried on."""

    requests: Sequence[WorkloadRequest]
    depths: DepthSource
    """Of requests that bring none along."""
    num_planes: int
    """P."""
    exit_mode: ExitMode = ExitMode.TRACE
    """How exits are decided: `trace` knows them ahead, and has a head where a token leaves; the
    other modes come to the same depths by signals on the device, and have one where it may."""
    seed: int = 0
    """Of arrivals that are made up."""
    rate: float | None = None
    """Requests per second of an open loop. For requests that bring arrival times: what their rate
    is changed to; None leaves it."""
    burstiness: float | None = None
    """See `arrival_times`. None: Poisson."""
    concurrency: int | None = None
    """Requests under way in a closed loop, instead of arrival times."""
    vocab_size: int = VOCAB_SIZE
    """Token ids of prompts are below it."""

    def __post_init__(self) -> None:
        _check_count(len(self.requests))
        has_times = self.requests[0].arrival_time is not None
        if self.concurrency is not None and (self.rate is not None or self.burstiness is not None):
            raise UsageError(
                "a closed loop (concurrency) takes no rate and no burstiness, which are for "
                "arrivals in time"
            )
        if not has_times and self.concurrency is None and self.rate is None:
            raise UsageError("expected a rate, or a concurrency, for requests without arrival_time")
        if has_times and self.burstiness is not None:
            raise UsageError("requests that bring arrival times take no burstiness")
        if self.concurrency is not None and self.concurrency < 1:
            raise UsageError(f"concurrency must be at least 1, got {self.concurrency}")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise UsageError(f"expected a rate above 0, got {self.rate}")
        if self.rate is not None and not has_times:
            arrival_times(0, self.rate, seed=self.seed, burstiness=self.burstiness)  # its checks
        if self.longest > MOST_REQUEST_TOKENS:
            raise UsageError(
                f"expected at most {MOST_REQUEST_TOKENS:,} tokens of a request, prompt and output "
                f"together; got {self.longest:,}"
            )
        num_tokens = sum(one.prompt_tokens + one.output_tokens for one in self.requests)
        if num_tokens > MOST_TOKENS:
            raise UsageError(
                f"expected at most {MOST_TOKENS:,} tokens of all requests together, got "
                f"{num_tokens:,}; simulate fewer requests, or shorter ones"
            )

    @property
    def longest(self) -> int:
        """Prompt and output tokens of the longest request."""
        return max(one.prompt_tokens + one.output_tokens for one in self.requests)

    def arrivals(self) -> Arrivals:
        """New requests for one run.

        Raises:
            UsageError: depths that are no exit trace of this P.
        """
        if self.concurrency is not None:
            return ClosedArrivals(self._built(), self.concurrency)
        return TimedArrivals(map(Arrival, self._times(), self._built()))

    def check_depths(self) -> None:
        """Checks depths that were not made up.

        Raises:
            UsageError: some are no exit trace of this P, or none that the exit mode comes to.
        """
        for index, one in enumerate(self.requests):
            if one.depths is not None or isinstance(self.depths, RecordedDepths):
                self._rule(index, self._depths(index))

    @property
    def share_past_end(self) -> float:
        """Of the output tokens, how many lie past the end of their recorded depths: 0 to 1."""
        if not isinstance(self.depths, RecordedDepths):
            return 0.0
        num_past = sum(
            self.depths.num_past_end(index, one.output_tokens)
            for index, one in enumerate(self.requests)
            if one.depths is None
        )
        return num_past / sum(one.output_tokens for one in self.requests)

    @property
    def facts(self) -> tuple[Any, ...]:
        """All that a scheduler gets to see; equal for workloads that lead to equal runs."""
        times = None if self.concurrency is not None else self._times()
        depths = [self._depths(index) for index in range(len(self.requests))]
        return times, [replace(one, arrival_time=None, depths=()) for one in self.requests], depths

    def _times(self) -> list[float]:
        own = [one.arrival_time for one in self.requests if one.arrival_time is not None]
        if not own:
            assert self.rate is not None
            return arrival_times(
                len(self.requests), self.rate, seed=self.seed, burstiness=self.burstiness
            )
        if self.rate is None or len(own) < 2 or not max(own) > min(own):
            return own
        stretch = (len(own) - 1) / (max(own) - min(own)) / self.rate
        return [time * stretch for time in own]

    def _built(self) -> Iterator[Request]:
        needed = {index for one in self.requests for index in one.earlier_samples}
        built: dict[int, Request] = {}
        for index, one in enumerate(self.requests):
            depths = self._depths(index)
            request = Request(
                request_id=str(index),
                prompt_token_ids=one.prompt_token_ids
                or prompt_of(
                    index,
                    one.prompt_tokens,
                    num_shared=one.shared_prefix_tokens,
                    vocab_size=self.vocab_size,
                ),
                earlier_samples=tuple(built[earlier] for earlier in one.earlier_samples),
                max_tokens=one.output_tokens,
                exit_rule=self._rule(index, depths),
                priority=one.priority,
                payload=SimulatedOutput(depths),
            )
            if index in needed:
                built[index] = request
            yield request

    def _depths(self, index: int) -> tuple[int, ...]:
        one = self.requests[index]
        if one.depths is None:
            return self.depths.depths(index, one.output_tokens)
        return one.depths[: one.output_tokens] or (self.num_planes,)

    def _rule(self, index: int, depths: tuple[int, ...]) -> ExitRule:
        """A rule by which a request's tokens leave at these depths."""
        try:
            trace = resolve_exit(ExitOptions(trace=depths), ExitOptions(), self.num_planes)
            rule = self.requests[index].exit_rule
            if rule is not None:
                return rule
            if self.exit_mode is ExitMode.TRACE:
                return trace
            is_full = min(depths) == self.num_planes
            if not is_full and min(depths) < fewest_loops(self.exit_mode):
                raise RequestError(
                    f"exit mode {self.exit_mode} decides a loop ahead, so no token leaves after "
                    "loop 1; its depths have one that does: try exit mode trace or ouro"
                )
            options = ExitOptions(
                mode=self.exit_mode, threshold=1.0 if is_full else 0.5, min_loops=1
            )
            return resolve_exit(options, ExitOptions(), self.num_planes)
        except RequestError as error:
            raise UsageError(f"request {index} of the workload: {error}") from None


def fewest_loops(mode: ExitMode) -> int:
    """Loops after which a token can leave at the earliest, by how that is decided."""
    return 1 if mode in (ExitMode.TRACE, ExitMode.OURO) else 2
