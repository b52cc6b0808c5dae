"""Who listens to an engine's launches: nobody, or a recorder with a clock.

The engine itself reads no clock. It tells its observer when each part of a step is over, and is
told the time; the default observer is deaf, so an engine without a log pays little more than that.
"""

import time
from collections.abc import Callable, Sequence
from enum import IntEnum, auto

from looped.sched import FinishReason, Request, Scheduler, TokenOutput

from .launch_events import EndEvent, LaunchEvent, LogEvent, LoggedToken, QueueLengths, RequestEvent
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

    def added(self, request: Request) -> None:
        """A request, or one of its samples, is in the queue."""

    def mark(self, moment: Moment) -> float:
        """A part of a step is over; returns the time of it, in seconds from any zero.

        The clock is read here and nowhere else, so what policies see as the time of SCHEDULING is
        what a log says.
        """
        return time.perf_counter()

    def launched(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        """A launch has been applied: its tokens can be seen. Its moments were marked before."""

    def ended(self, request: Request) -> None:
        """A request, or one of its samples, is over."""


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

    def added(self, request: Request) -> None:
        self._sink(
            RequestEvent(
                self._now(),
                request.request_id,
                request.sample_index,
                request.num_prompt_tokens,
                request.max_tokens,
            )
        )

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

    def ended(self, request: Request) -> None:
        reason = request.finish_reason or FinishReason.ABORT
        name = request.request_id, request.sample_index
        self._sink(EndEvent(self._now(), *name, reason, len(request.output_token_ids)))

    def _now(self) -> float:
        return self._clock() - self._zero
