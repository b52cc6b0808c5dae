"""Runs a Scheduler without a device: the same code that serves, on a clock of its own.

    schedule -> what the launch has to do -> what that costs -> run_ahead launches later:
    made-up results -> apply

The Scheduler, its policies, admission, blocks and exit rules are those of the engine; only the
executor and the clock differ. As in the engine, the device decides and the host reads late: while
the device works, the host makes the next launches. Results are made up from what each request
brings along: the loops that its tokens run, and the tokens where they matter. Nothing is random
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..config import SchedulerConfig
from ..costing.work import LaunchCosts, LaunchWork
from ..exits import ExitMode, is_deciding, last_loop
from ..items import Batch, ItemKind
from ..ladders import ladders_for
from ..launches import calls_of, head_bucket
from ..policies import Policy
from ..request import Request
from ..results import HeadResult, LaunchResult, RowStatus, ScoreResult, StepUpdate
from ..scheduler import Scheduler
from ..states import PromptStateHandle, PromptStateOwner
from .arrivals import Arrival, Arrivals

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
        """Return the results of a launch, which is about to be applied."""
        ...


class SimulatedExecutor:
    """Answers every launch at once, from the requests' `SimulatedOutput`."""

    def acquire(self, request: Request) -> PromptStateHandle:
        """Prompt state holds nothing here."""
        return object()

    def release(self, handle: PromptStateHandle) -> None:
        """Nothing to take back."""

    def execute(self, batch: Batch) -> LaunchResult:
        """Return scores, and rows that leave at their depths with their tokens."""
        head = _head_of(batch) if batch.head_items else None
        return LaunchResult(head, _scores_of(batch) if batch.launch.brings_scores else None)


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


@dataclass(slots=True)
class SimulatedLaunch:
    """One launch: what it carried, when, and what it brought. Complete when it has been applied."""

    index: int
    """Launches before it."""
    batch: Batch
    """Its items, as the scheduler built them."""
    slots: tuple[int, ...]
    """Place in device state of each item's request."""
    work: LaunchWork
    """Its size, bucket included."""
    head: LaunchWork | None
    """The head behind it, if a row could finish in it: of form `greedy`, or `greedy_copies` where
    one could leave before the last loop."""
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
    awaited: float = 0.0
    """The host turned to it: from here on it waits, if the device is not done."""
    visible: float = 0.0
    """The host had applied it: not before it `ended`, and run_ahead launches later."""
    update: StepUpdate = field(default_factory=StepUpdate)
    """Tokens, and requests that are over."""


class SimulationListener:
    """Hears of a simulation what an engine's observer would, in its order; ignores it all.

    The clock stands at the moment that it hears of.
    """

    def arrived(self, arrival: Arrival) -> None:
        """The scheduler has a request that it did not know before."""

    def dispatched(self, launch: SimulatedLaunch) -> None:
        """A launch is out: its moments up to `ended` are known."""

    def applying(self, launch: SimulatedLaunch, result: LaunchResult) -> None:
        """The oldest launch that is out is about to be applied: requests are as before it."""

    def applied(self, launch: SimulatedLaunch) -> None:
        """It has been applied, and is complete."""


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
        waits_for_device: whether the host waits for every launch before it does anything else; it
            is applied run_ahead launches later all the same.
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
        self._device_free = 0.0
        self.ladders = ladders_for(
            config, is_deterministic=is_deterministic, policy=self.scheduler.policy
        )
        """Row buckets of each kind of launch."""
        self._num_launches = 0
        self._num_ahead = config.launches_ahead(self.scheduler.policy)
        self.waits_for_device = waits_for_device
        self.listener = SimulationListener()
        """Who hears of it; to be set before the first step."""
        self._unread: deque[SimulatedLaunch] = deque()
        self._held_arrivals: list[Arrival] = []
        """Requests that the scheduler has seen without a launch since."""

    def run(self) -> Iterator[SimulatedLaunch]:
        """Yield launches until every request is over."""
        while (launch := self.step()) is not None:
            yield launch

    def step(self) -> SimulatedLaunch | None:
        """Return the next launch that has been applied; None if every request is over.

        As in the engine, launch n is handed to the device before the record of n - run_ahead is
        waited for; the device runs what it was given in order. What arrives meanwhile is seen
        before the next launch. Where nothing can be launched the oldest is applied.

        Raises:
            RequestError: a request that comes could never run.
            InterfaceError: the policy takes nothing, or what it must not.
        """
        arrivals: list[Arrival] = []
        while len(self._unread) <= self._num_ahead:
            arrivals += self._take_arrivals()
            batch = self.scheduler.schedule(self.clock.now)
            if batch is not None:
                self._unread.append(self._launched(batch, tuple(arrivals)))
                self.listener.dispatched(self._unread[-1])
                arrivals = []
            elif self._unread:
                break
            elif (time := self._arrivals.next_time) is not None:
                self.clock.advance_to(time)
            else:
                return None
        self._held_arrivals = arrivals
        return self._apply_oldest()

    def _launched(self, batch: Batch, arrivals: tuple[Arrival, ...]) -> SimulatedLaunch:
        """Put a launch behind those that the device has, and let the host's part pass."""
        work, head = self._work(batch), self._head(batch)
        costs, scheduled = self._costs, self.clock.now
        called = scheduled + costs.host_seconds(len(batch.items), work.bucket, work.num_calls)
        started = max(called, self._device_free)
        seconds, call_seconds = costs.seconds(work), costs.call_seconds(work.bucket)
        # The device may run dry before the last of several calls, which has its share to do.
        last_called = called + (work.num_calls - 1) * call_seconds
        ended = max(started + seconds, last_called + seconds / work.num_calls)
        returned = called + work.num_calls * call_seconds
        if head is not None:
            ended = max(ended, returned) + costs.seconds(head)
            returned += costs.call_seconds(head.bucket)
        self._device_free = ended
        self.clock.advance_to(max(ended, returned) if self.waits_for_device else returned)
        self._num_launches += 1
        return SimulatedLaunch(
            index=self._num_launches - 1,
            batch=batch,
            slots=tuple([item.request.slot for item in batch.items]),
            work=work,
            head=head,
            arrivals=arrivals,
            scheduled=scheduled,
            called=called,
            returned=returned,
            started=started,
            ended=ended,
        )

    def _apply_oldest(self) -> SimulatedLaunch:
        launch = self._unread.popleft()
        launch.awaited = self.clock.now
        self.clock.advance_to(launch.ended)
        launch.visible = self.clock.now
        result = self._executor.execute(launch.batch)
        self.listener.applying(launch, result)
        launch.update = self.scheduler.apply(launch.batch, result)
        self.listener.applied(launch)
        for request in launch.update.finished:
            self._arrivals.ended(request, launch.visible)
        return launch

    def _take_arrivals(self) -> list[Arrival]:
        held, self._held_arrivals = self._held_arrivals, []
        due = list(self._arrivals.due(self.clock.now))
        for arrival in due:
            self.scheduler.add(arrival.request)
            self.listener.arrived(arrival)
        return held + due

    def _work(self, batch: Batch) -> LaunchWork:
        calls = calls_of(batch, self.ladders)
        return LaunchWork.of(
            batch.items,
            kind=calls.kind,
            num_passes=batch.num_passes,
            bucket=calls.bucket,
            num_calls=calls.num_calls,
        )

    def _head(self, batch: Batch) -> LaunchWork | None:
        num_rows = len(batch.head_items)
        if num_rows == 0:
            return None
        may_skip = any(
            item.kind is ItemKind.DECODE
            and (item.depth is None or item.depth + 1 < self.scheduler.config.num_planes)
            for item in batch.head_items
        )
        form = "greedy_copies" if may_skip else "greedy"
        return LaunchWork.head(head_bucket(batch, self.ladders), num_rows, form)


def _head_of(batch: Batch) -> HeadResult:
    requests = [item.request for item in batch.head_items]
    count = len(requests)
    return HeadResult(
        statuses=[_status(request) for request in requests],
        loops=[request.loops_done + 1 for request in requests],
        token_ids=[_token_id(request) for request in requests],
        logprobs=[0.0] * count,
        is_finite=[True] * count,
    )


def _scores_of(batch: Batch) -> ScoreResult:
    return ScoreResult([0.0] * batch.num_rows, [ANY_TOKEN_ID] * batch.num_rows, True)


def _output(request: Request) -> SimulatedOutput:
    payload = request.payload
    return payload if isinstance(payload, SimulatedOutput) else SimulatedOutput()


def _token_id(request: Request) -> int:
    token_ids, index = _output(request).token_ids, len(request.output_token_ids)
    return token_ids[index] if index < len(token_ids) else ANY_TOKEN_ID


def _status(request: Request) -> RowStatus:
    """What becomes of a row whose token leaves at its depth, as far as its rule allows that."""
    if request.is_finished:
        return RowStatus.MASKED
    loop, leaving = request.loops_done + 1, _leaving_loop(request)
    if loop == leaving:
        return RowStatus.LEFT
    rule = request.exit_rule
    is_settled = rule.mode is not ExitMode.OURO and is_deciding(rule, loop, False)
    return RowStatus.LEAVES_NEXT if is_settled and loop + 1 == leaving else RowStatus.STAYED


def _leaving_loop(request: Request) -> int:
    """The loop after which the newest token leaves: at its depth, or where its rule lets it."""
    rule, index = request.exit_rule, len(request.output_token_ids)
    if index == 0:
        return request.loops_done + 1
    depths, last = _output(request).depths, last_loop(rule, index)
    depth = depths[index] if index < len(depths) else last
    # `ouro` leaves after the loop that is looked at, the others after the next one.
    loops_ahead = 0 if rule.mode is ExitMode.OURO else 1
    for loop in range(1, last):
        if is_deciding(rule, loop, False) and depth <= loop + loops_ahead:
            return loop + loops_ahead
    return last
