"""Who listens to an engine's launches: nobody, or a recorder with a clock.

The engine itself reads no clock. It tells its observer when each part of a step is over, and is
told the time; the default observer ignores everything, so an engine without a log pays little
more than that.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from weakref import WeakKeyDictionary

from looped.sched import (
    Batch,
    FinishReason,
    Ladder,
    LaunchKind,
    LaunchResult,
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
    COLLECTED = auto()
    """What had to be read is on the host."""


class LaunchObserver:
    """Hears nothing. A subclass that listens overrides what it wants to know."""

    waits_for_device = False
    """Whether the engine is to wait for every launch, so that COLLECTED is the device's end."""
    records_gates = False
    """Whether the engine is to run the gate, and read it, in every pass of a decode row, and to
    refuse requests that may exit early."""

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

    def collected(self, batch: Batch, result: LaunchResult) -> None:
        """A launch's result is on the host, and its requests do not know of it yet."""

    def launched(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        """A launch has been applied: its tokens can be seen. Its moments were marked before."""

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

    def collected(self, batch: Batch, result: LaunchResult) -> None:
        self._observer.collected(batch, result)

    def launched(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        self._observer.launched(record, tokens, scheduler, num_compilations)

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
        index = self._turn_to(scheduler).num_launches
        self._sink(RequestEvent.of(request, time=self._now(), launch_index=index))

    def mark(self, moment: Moment) -> float:
        self._moments[moment] = now = self._now()
        return now

    def launched(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        visible = self._now()
        self._turn_to(scheduler).num_launches = record.index + 1
        self._sink(
            LaunchEvent(
                record=record,
                scheduled=self._moments[Moment.SCHEDULING],
                started=self._moments[Moment.STARTING],
                dispatched=self._moments[Moment.DISPATCHED],
                ended=self._moments[Moment.COLLECTED],
                visible=visible,
                queues=QueueLengths.of(scheduler),
                num_compilations=num_compilations,
                tokens=tuple(map(LoggedToken.from_output, tokens)),
            )
        )

    def aborting(self, request: Request, scheduler: Scheduler) -> None:
        index = self._turn_to(scheduler).num_launches
        self._sink(AbortEvent.of(request, time=self._now(), launch_index=index))

    def failed(self, message: str, scheduler: Scheduler, *, is_reset: bool) -> None:
        index = self._turn_to(scheduler).num_launches
        self._sink(FaultEvent(self._now(), index, is_reset, message))

    def ended(self, request: Request, scheduler: Scheduler) -> None:
        index = self._turn_to(scheduler).num_launches
        reason = request.finish_reason or FinishReason.ABORT
        name = request.request_id, request.sample_index
        self._sink(EndEvent(self._now(), *name, index, reason, len(request.output_token_ids)))

    def _turn_to(self, scheduler: Scheduler) -> _Engine:
        """The scheduler's engine; says so in the log if it is not the one of the last event."""
        engine = self._engines[scheduler]
        if engine is not self._last:
            self._last = engine
            self._sink(
                replace(engine.description, time=self._now(), launch_index=engine.num_launches)
            )
        return engine

    def _now(self) -> float:
        return self._clock() - self._zero
