"""Simulated launches as events of a launch log, so that every reader of an engine's log reads them.

The recorder is the engine's own; its clock is set to each simulated moment before it is told.
"""

from collections.abc import Callable, Iterator

from looped.engine.events import LogEvent
from looped.engine.observer import LaunchRecorder, Moment
from looped.engine.records import ItemRecord, LaunchRecord
from looped.sched import SimulatedLaunch, Simulation


def record(simulation: Simulation, sink: Callable[[LogEvent], None]) -> Iterator[SimulatedLaunch]:
    """Runs a simulation that is at its start, and yields its launches as it goes.

    Args:
        simulation: not asked for a launch yet.
        sink: takes the events, in order; a list's `append`, or `LaunchLogWriter.write`.

    Returns:
        The launches; their events are in the sink by then. A request's time is that of its
        arrival, which may lie inside the launch before the one that saw it first.
    """
    now = 0.0
    recorder = LaunchRecorder(sink, clock=lambda: now)
    scheduler = simulation.scheduler
    recorder.built(
        scheduler,
        simulation.ladders,
        is_deterministic=simulation.is_deterministic,
        records_gates=False,
    )
    for launch in simulation.run():
        for arrival in launch.arrivals:
            now = arrival.time
            recorder.added(arrival.request, scheduler)
        moments = (
            (Moment.SCHEDULING, launch.scheduled),
            (Moment.PACKING, launch.scheduled),
            (Moment.STARTING, launch.called),
            (Moment.DISPATCHED, launch.returned),
            (Moment.COLLECTED, launch.visible),
        )
        for moment, now in moments:  # noqa: B007 - the clock reads it
            recorder.mark(moment)
        recorder.launched(_launch_record(simulation, launch), launch.update.tokens, scheduler, 0)
        for request in launch.update.finished:
            recorder.ended(request, scheduler)
        yield launch


def _launch_record(simulation: Simulation, launch: SimulatedLaunch) -> LaunchRecord:
    batch, work = launch.batch, launch.work
    return LaunchRecord(
        index=launch.index,
        kind=batch.launch,
        bucket=work.bucket,
        num_rows=work.num_rows,
        num_passes=work.num_passes,
        num_calls=work.num_calls,
        num_count_uploads=0,
        runs_gate=batch.runs_gate,
        records_gates=False,
        num_readbacks=int(batch.is_read),
        items=tuple(map(ItemRecord.of, batch.items, launch.slots)),
    )
