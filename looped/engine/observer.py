"""Who listens to an engine's launches: nobody, or a recorder with a clock.

The engine itself reads no clock. It tells its observer when each part of a step is over, and is
told the time; the default observer ignores everything, so an engine without a log pays little
more than that.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, auto
from weakref import WeakKeyDictionary

from looped.sched import (
    FinishReason,
    Ladder,
    LaunchKind,
    Request,
    Scheduler,
    TokenOutput,
)

from .events import (
    AbortEvent,
    EndEvent,
    EngineEvent,
    FaultEvent,
    LaunchEvent,
    LogEvent,
    LoggedToken,
    QueueLengths,
    RequestEvent,
)
from .records import LaunchRecord

Clock = Callable[[], float]
"""Seconds, from any zero; never goes back."""


class Moment(IntEnum):
    """Points of a step, in order."""

    SCHEDULING = 0
    """About to ask the scheduler."""
    PACKING = auto()
    """It has answered; about to pack and upload the batch."""
    STARTING = auto()
    """About to call the executable."""
    DISPATCHED = auto()
    """The call has returned."""
    AWAITING = auto()
    """About to wait for the oldest launch that is out: that one, or one before it."""
    COLLECTED = auto()
    """It is done, and what had to be read is on the host."""


class LaunchObserver:
    """Hears nothing. A subclass that listens overrides what it wants to know."""

    waits_for_device = False
    """Whether the engine is to wait for every launch before it goes on: COLLECTED is marked then,
    too, and is the device's end."""
    records_gates = False
    """Whether tokens are to bring the gates of all their loops, and requests that may exit early
    are to be refused."""

    def built(
        self,
        scheduler: Scheduler,
        ladders: dict[LaunchKind, Ladder],
        *,
        is_deterministic: bool,
        records_gates: bool,
    ) -> None:
        """An engine with this scheduler is ready for requests. Its scheduler names it below."""

    def added(self, request: Request, scheduler: Scheduler) -> None:
        """A request, or one of its samples, is in the queue."""

    def mark(self, moment: Moment) -> float:
        """A part of a step is over; returns the time of it, in seconds from any zero.

        The clock is read here and nowhere else, so what policies see as the time of SCHEDULING is
        what a log says.
        """
        return time.perf_counter()

    def dispatched(self, scheduler: Scheduler) -> None:
        """A launch is out; its moments up to DISPATCHED have been marked."""

    def applied(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        """The oldest launch that was out has been applied: its tokens can be seen."""

    def aborting(self, request: Request, scheduler: Scheduler) -> None:
        """A request, or one of its samples, is about to be aborted."""

    def failed(self, message: str, scheduler: Scheduler, *, is_reset: bool) -> None:
        """A launch failed: before it reached the device, or with the device state (a reset)."""

    def ended(self, request: Request, scheduler: Scheduler) -> None:
        """A request, or one of its samples, is over."""


class ForwardingObserver(LaunchObserver):
    """Tells another observer all that it hears; a subclass listens itself as well."""

    def __init__(self, observer: LaunchObserver) -> None:
        self.waits_for_device = observer.waits_for_device
        self.records_gates = observer.records_gates
        self._observer = observer

    def built(
        self,
        scheduler: Scheduler,
        ladders: dict[LaunchKind, Ladder],
        *,
        is_deterministic: bool,
        records_gates: bool,
    ) -> None:
        self._observer.built(
            scheduler, ladders, is_deterministic=is_deterministic, records_gates=records_gates
        )

    def added(self, request: Request, scheduler: Scheduler) -> None:
        self._observer.added(request, scheduler)

    def mark(self, moment: Moment) -> float:
        return self._observer.mark(moment)

    def dispatched(self, scheduler: Scheduler) -> None:
        self._observer.dispatched(scheduler)

    def applied(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        self._observer.applied(record, tokens, scheduler, num_compilations)

    def aborting(self, request: Request, scheduler: Scheduler) -> None:
        self._observer.aborting(request, scheduler)

    def failed(self, message: str, scheduler: Scheduler, *, is_reset: bool) -> None:
        self._observer.failed(message, scheduler, is_reset=is_reset)

    def ended(self, request: Request, scheduler: Scheduler) -> None:
        self._observer.ended(request, scheduler)


@dataclass(slots=True)
class _Engine:
    """What a recorder knows of one engine."""

    description: EngineEvent
    num_launches: int = 0
    num_applied: int = 0
    unread: deque[tuple[float, ...]] = field(default_factory=deque)
    """Moments of each launch that is out."""

    @property
    def counts(self) -> dict[str, int]:
        """Launches so far, and those among them that have been applied."""
        return {"launch_index": self.num_launches, "num_applied": self.num_applied}


class LaunchRecorder(LaunchObserver):
    """Turns what it hears into events with times, and hands each to a sink.

    Args:
        sink: takes the events, in order; a list's `append`, or `LaunchLogWriter.write`.
        clock: seconds; tests give one of their own.
        waits_for_device: see `LaunchObserver`.
    """

    def __init__(
        self,
        sink: Callable[[LogEvent], None],
        *,
        clock: Clock = time.perf_counter,
        waits_for_device: bool = False,
    ) -> None:
        self.waits_for_device = waits_for_device
        self._sink = sink
        self._clock = clock
        self._zero = clock()
        self._moments = [0.0] * len(Moment)
        self._engines: WeakKeyDictionary[Scheduler, _Engine] = WeakKeyDictionary()
        self._num_engines = 0
        self._last: _Engine | None = None

    def built(
        self,
        scheduler: Scheduler,
        ladders: dict[LaunchKind, Ladder],
        *,
        is_deterministic: bool,
        records_gates: bool,
    ) -> None:
        description = EngineEvent.of(
            scheduler,
            ladders,
            engine_index=self._num_engines,
            is_deterministic=is_deterministic,
            records_gates=records_gates,
        )
        self._engines[scheduler] = _Engine(description)
        self._num_engines += 1

    def added(self, request: Request, scheduler: Scheduler) -> None:
        counts = self._turn_to(scheduler).counts
        self._sink(RequestEvent.of(request, time=self._now(), **counts))

    def mark(self, moment: Moment) -> float:
        self._moments[moment] = now = self._now()
        return now

    def dispatched(self, scheduler: Scheduler) -> None:
        engine = self._engines[scheduler]
        engine.num_launches += 1
        engine.unread.append(tuple(self._moments))

    def applied(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        visible = self._now()
        engine = self._turn_to(scheduler)
        moments = engine.unread.popleft()
        engine.num_applied += 1
        # With waits_for_device both were marked before it was out.
        awaited = moments if self.waits_for_device else self._moments
        self._sink(
            LaunchEvent(
                record=record,
                launch_index=engine.num_launches,
                scheduled=moments[Moment.SCHEDULING],
                started=moments[Moment.STARTING],
                dispatched=moments[Moment.DISPATCHED],
                awaited=awaited[Moment.AWAITING],
                ended=awaited[Moment.COLLECTED],
                visible=visible,
                queues=QueueLengths.of(scheduler),
                num_compilations=num_compilations,
                tokens=tuple(map(LoggedToken.from_output, tokens)),
            )
        )

    def aborting(self, request: Request, scheduler: Scheduler) -> None:
        counts = self._turn_to(scheduler).counts
        self._sink(AbortEvent.of(request, time=self._now(), **counts))

    def failed(self, message: str, scheduler: Scheduler, *, is_reset: bool) -> None:
        engine = self._turn_to(scheduler)
        fault = FaultEvent(time=self._now(), **engine.counts, is_reset=is_reset, message=message)
        self._sink(fault)
        if is_reset:
            engine.unread.clear()

    def ended(self, request: Request, scheduler: Scheduler) -> None:
        counts = self._turn_to(scheduler).counts
        self._sink(
            EndEvent(
                time=self._now(),
                request_id=request.request_id,
                sample_index=request.sample_index,
                **counts,
                reason=request.finish_reason or FinishReason.ABORT,
                num_tokens=len(request.output_token_ids),
            )
        )

    def _turn_to(self, scheduler: Scheduler) -> _Engine:
        """The scheduler's engine; says so in the log if it is not the one of the last event."""
        engine = self._engines[scheduler]
        if engine is not self._last:
            self._last = engine
            described = replace(engine.description, time=self._now())
            self._sink(replace(described, **engine.counts))  # type: ignore[arg-type]  # two ints
        return engine

    def _now(self) -> float:
        return self._clock() - self._zero
