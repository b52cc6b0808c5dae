"""Runs a Scheduler without a device: the same code that serves, on a clock of its own.

    schedule -> what the launch has to do -> what that costs -> made-up results -> apply

The Scheduler, its policies, admission, blocks and exit rules are those of the engine; only the
executor and the clock differ. Results are made up from what each request brings along: the loops
that its tokens run, and the tokens where they matter. Nothing is random here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import SchedulerConfig
from ..costing.work import LaunchCosts, LaunchWork
from ..exits import ExitMode
from ..items import Batch, ScheduledItem
from ..ladders import ladders_for
from ..launches import calls_of
from ..policies import Policy
from ..request import Request
from ..results import CodaResult, LaunchResult, RecurrentResult, ScoreResult, StepUpdate
from ..scheduler import Scheduler
from ..states import PromptStateHandle, PromptStateOwner
from .arrivals import Arrival, Arrivals

STAYS, LEAVES = -1.0, 2.0
"""Signals below and above every threshold."""
ANY_TOKEN_ID = 0
"""What is sampled where a request does not say."""


@dataclass(frozen=True, slots=True)
class SimulatedOutput:
    """What will come of a request: the `payload` that a simulated executor reads."""

    depths: Sequence[int] = ()
    """Loops of each output token, 1-based, the first P. Tokens past its end run all they may.
    Not looked at under exit mode `trace`, whose rule says it already."""
    token_ids: Sequence[int] = ()
    """Sampled tokens, for stop ids to be met; past its end ANY_TOKEN_ID."""


class Executor(PromptStateOwner, Protocol):
    """The device's side of a scheduler: owns prompt state and runs batches."""

    def execute(self, batch: Batch) -> LaunchResult:
        """Return the results of a launch."""
        ...


class SimulatedExecutor:
    """Answers every launch at once, from the requests' `SimulatedOutput`."""

    def acquire(self, request: Request) -> PromptStateHandle:
        """Prompt state holds nothing here."""
        return object()

    def release(self, handle: PromptStateHandle) -> None:
        """Nothing to take back."""

    def execute(self, batch: Batch) -> LaunchResult:
        """Return signals that make each token leave at its depth, or tokens, or scores."""
        return _RESULTS[batch.launch.result_type](batch)


class SimulationCosts(LaunchCosts, Protocol):
    """Prices of a simulated step: `CostModel` has them."""

    def host_seconds(self, num_items: int, bucket: int, num_calls: int) -> float:
        """Return how long the host is busy before the first call of a launch of so many items."""
        ...

    def call_seconds(self, bucket: int) -> float:
        """Return how long a call takes the host, while the device works already."""
        ...


class SimulatedClock:
    """Seconds since the start; stands still until it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance_to(self, time: float) -> None:
        """Go on to `time`; a time that is past changes nothing."""
        self.now = max(self.now, time)


@dataclass(frozen=True, slots=True)
class SimulatedLaunch:
    """One launch: what it carried, when, and what it brought."""

    index: int
    """Launches before it."""
    batch: Batch
    """Its items, as the scheduler built them."""
    slots: tuple[int, ...]
    """Place in device state of each item's request."""
    work: LaunchWork
    """Its size, bucket included."""
    arrivals: tuple[Arrival, ...]
    """Requests that the scheduler saw for the first time before this launch."""
    scheduled: float
    """The scheduler was asked."""
    called: float
    """The host was done with its part, and called the device for the first time."""
    returned: float
    """The last call had returned; the device may have begun before."""
    started: float
    """The device began, with everything before it done."""
    ended: float
    """The device was done."""
    visible: float
    """The host went on: `returned`, or at `ended` where it reads or waits, if that is later."""
    update: StepUpdate
    """Tokens, and requests that are over."""


class Simulation:
    """A scheduler, requests that come, and launches that cost time.

    Args:
        config: sizes and limits.
        arrivals: the requests.
        costs: seconds of a launch, and of the host around it.
        policy: a policy that is not shipped; overrides `config.policy`.
        executor: makes up results; None: from each request's `SimulatedOutput`.
        is_deterministic: one bucket a kind, and several passes as calls of a single one, as
            `--deterministic` has it.
        waits_for_device: whether the host waits for launches that it does not read, too.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        arrivals: Arrivals,
        costs: SimulationCosts,
        *,
        policy: Policy | None = None,
        executor: Executor | None = None,
        is_deterministic: bool = False,
        waits_for_device: bool = False,
    ) -> None:
        self.clock = SimulatedClock()
        self._executor = executor or SimulatedExecutor()
        self.scheduler = Scheduler(config, self._executor, policy)
        self._arrivals = arrivals
        self._costs = costs
        self.is_deterministic = is_deterministic
        self._waits_for_device = waits_for_device
        self._device_free = 0.0
        self.ladders = ladders_for(
            config, is_deterministic=is_deterministic, policy=self.scheduler.policy
        )
        """Row buckets of each kind of launch."""
        self._num_launches = 0

    def run(self) -> Iterator[SimulatedLaunch]:
        """Yield launches until every request is over."""
        while (launch := self.step()) is not None:
            yield launch

    def step(self) -> SimulatedLaunch | None:
        """Run one launch; None if every request is over.

        As in the engine, the host waits for a launch that it reads, and goes on at once after
        another one: the device runs what it was given in order. What arrives meanwhile is seen
        before the next launch.

        Raises:
            RequestError: a request that comes could never run.
            InterfaceError: the policy takes nothing, or what it must not.
        """
        arrivals = self._take_arrivals()
        while (batch := self.scheduler.schedule(self.clock.now)) is None:
            if (time := self._arrivals.next_time) is None:
                return None
            self.clock.advance_to(time)
            arrivals += self._take_arrivals()
        work = self._work(batch)
        scheduled = self.clock.now
        host_seconds = self._costs.host_seconds(len(batch.items), work.bucket, work.num_calls)
        called = scheduled + host_seconds
        started = max(called, self._device_free)
        seconds, call_seconds = self._costs.seconds(work), self._costs.call_seconds(work.bucket)
        returned = called + work.num_calls * call_seconds
        # The device may run dry before the last of several calls, which has its share to do.
        last_called = called + (work.num_calls - 1) * call_seconds
        ended = max(started + seconds, last_called + seconds / work.num_calls)
        self._device_free = ended
        is_awaited = batch.is_read or self._waits_for_device
        visible = max(ended, returned) if is_awaited else returned
        slots = tuple([item.request.slot for item in batch.items])
        update = self.scheduler.apply(batch, self._executor.execute(batch))
        self.clock.advance_to(visible)
        for request in update.finished:
            self._arrivals.ended(request, visible)
        self._num_launches += 1
        return SimulatedLaunch(
            self._num_launches - 1,
            batch,
            slots,
            work,
            tuple(arrivals),
            scheduled,
            called,
            returned,
            started,
            ended,
            visible,
            update,
        )

    def _take_arrivals(self) -> list[Arrival]:
        arrivals = list(self._arrivals.due(self.clock.now))
        for arrival in arrivals:
            self.scheduler.add(arrival.request)
        return arrivals

    def _work(self, batch: Batch) -> LaunchWork:
        calls = calls_of(batch, self.ladders)
        return LaunchWork.of(
            batch.items,
            kind=calls.kind,
            num_passes=batch.num_passes,
            bucket=calls.bucket,
            num_calls=calls.num_calls,
        )


def _signals_of(batch: Batch) -> RecurrentResult:
    if not batch.is_read:
        return RecurrentResult(None)
    return RecurrentResult([_signal(item) for item in batch.items[: batch.num_decode]])


def _tokens_of(batch: Batch) -> CodaResult:
    num_items = len(batch.items)
    token_ids = [_token_id(item) for item in batch.items]
    return CodaResult(token_ids, [0.0] * num_items, [True] * num_items)


def _scores_of(batch: Batch) -> ScoreResult:
    return ScoreResult([0.0] * batch.num_rows, [ANY_TOKEN_ID] * batch.num_rows, True)


_RESULTS: dict[type[LaunchResult], Callable[[Batch], LaunchResult]] = {
    RecurrentResult: _signals_of,
    CodaResult: _tokens_of,
    ScoreResult: _scores_of,
}
"""How each type of result is made up."""


def _output(request: Request) -> SimulatedOutput:
    payload = request.payload
    return payload if isinstance(payload, SimulatedOutput) else SimulatedOutput()


def _token_id(item: ScheduledItem) -> int:
    token_ids = _output(item.request).token_ids
    index = item.output_index
    return token_ids[index] if index < len(token_ids) else ANY_TOKEN_ID


def _signal(item: ScheduledItem) -> float:
    """What the host would have read if the token leaves at its depth, by the request's rule."""
    rule, depths = item.request.exit_rule, _output(item.request).depths
    index = item.output_index
    depth = depths[index] if index < len(depths) else rule.max_loops
    # `ouro` leaves after the loop that is read, the others after the next one.
    loops_ahead = 0 if rule.mode is ExitMode.OURO else 1
    return LEAVES if depth <= item.depth + 1 + loops_ahead else STAYS
