"""Simulated launches as events of a launch log, so that every reader of an engine's log reads them.

The recorder is the engine's own; its clock is set to each simulated moment before it is told.
"""

from collections.abc import Callable, Iterator

from looped.engine.events import LogEvent
from looped.engine.observer import LaunchRecorder, Moment
from looped.engine.records import HeadRecord, ItemRecord, LaunchRecord
from looped.sched import (
    Arrival,
    LaunchResult,
    SimulatedLaunch,
    Simulation,
    SimulationListener,
)


def record(simulation: Simulation, sink: Callable[[LogEvent], None]) -> Iterator[SimulatedLaunch]:
    """Runs a simulation that is at its start, and yields its launches as they are applied.

    Args:
        simulation: not asked for a launch yet.
        sink: takes the events, in order; a list's `append`, or `LaunchLogWriter.write`.

    Returns:
        The launches; their events are in the sink by then. A request's time is that of its
        arrival, which may lie inside the launch before the one that saw it first.
    """
    simulation.listener = _Recording(simulation, sink)
    yield from simulation.run()


class _Recording(SimulationListener):
    """Tells an engine's recorder what happens in a simulation."""

    def __init__(self, simulation: Simulation, sink: Callable[[LogEvent], None]) -> None:
        self._now = 0.0
        self._scheduler = simulation.scheduler
        self._waits_for_device = simulation.waits_for_device
        self._record: LaunchRecord | None = None
        """Of the launch that is being applied."""
        self._recorder = LaunchRecorder(
            sink, clock=lambda: self._now, waits_for_device=simulation.waits_for_device
        )
        self._recorder.built(
            self._scheduler,
            simulation.ladders,
            is_deterministic=simulation.is_deterministic,
            records_gates=False,
        )

    def arrived(self, arrival: Arrival) -> None:
        self._now = arrival.time
        self._recorder.added(arrival.request, self._scheduler)

    def dispatched(self, launch: SimulatedLaunch) -> None:
        self._mark(Moment.SCHEDULING, launch.scheduled)
        self._mark(Moment.PACKING, launch.scheduled)
        self._mark(Moment.STARTING, launch.called)
        self._mark(Moment.DISPATCHED, launch.returned)
        if self._waits_for_device:
            self._mark(Moment.AWAITING, launch.returned)
            self._mark(Moment.COLLECTED, max(launch.returned, launch.ended))
        self._recorder.dispatched(self._scheduler)

    def applying(self, launch: SimulatedLaunch, result: LaunchResult) -> None:
        self._record = _launch_record(launch, result)

    def applied(self, launch: SimulatedLaunch) -> None:
        assert self._record is not None
        self._mark(Moment.AWAITING, launch.awaited)
        self._mark(Moment.COLLECTED, launch.visible)
        self._recorder.applied(self._record, launch.update.tokens, self._scheduler, 0)
        for request in launch.update.finished:
            self._recorder.ended(request, self._scheduler)

    def _mark(self, moment: Moment, time: float) -> None:
        self._now = time
        self._recorder.mark(moment)


def _launch_record(launch: SimulatedLaunch, result: LaunchResult) -> LaunchRecord:
    batch, work, head = launch.batch, launch.work, launch.head
    statuses = {}
    if result.head is not None:
        statuses = dict(zip(batch.head_items, result.head.statuses, strict=True))
    return LaunchRecord(
        index=launch.index,
        kind=batch.launch,
        bucket=work.bucket,
        num_rows=work.num_rows,
        num_passes=work.num_passes,
        num_calls=work.num_calls,
        num_writes=0,
        num_readbacks=int(batch.is_read),
        head=None if head is None else HeadRecord(head.form, head.bucket, head.num_rows),
        items=tuple(
            [
                ItemRecord.of(item, slot, statuses.get(item))
                for item, slot in zip(batch.items, launch.slots, strict=True)
            ]
        ),
    )
