"""What a launch log says about costs: what launches had to do, and how long that took.

The host hands launches over, and the device begins with each in its call, or when everything before
it is done; the head of a launch follows with a call of its own. When a launch was done the host
knows only if it had to wait for it, or turned to it right after the call. A launch that was done
before the host turned to it shares a *sample* with those after it, up to one whose end was seen so.
In a log whose engine waited for every launch (`--launch-log-waits`), or read each before it made
the next (`--run-ahead 0`), each is a sample of its own.

Within a sample the device may have run dry: a host that schedules, packs and calls the next launch
may be the slower of the two. A `Sample` keeps the moments of the calls, for the fit to tell.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from looped.engine.events import LaunchEvent
from looped.engine.records import LaunchRecord
from looped.sched import ItemKind, LaunchWork, RowStatus

LEAST_WAIT = 1e-4
"""Seconds; a shorter wait is that of a read alone, of a launch that was done already."""
CONDITIONAL = "conditional"
"""The form of a head that does nothing if no row has left; a CPU's."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the device did one after the other; it was idle, or done with all before, at zero."""

    works: tuple[LaunchWork, ...]
    """Passes, scores and heads."""
    calls: tuple[float, ...]
    """When each was called, in seconds since zero; 0 of what was called before it."""
    seconds: float
    """When the host saw the end of the last one, in seconds since zero."""

    def end(self, seconds_of: Callable[[LaunchWork], float]) -> float:
        """What `seconds` would be if the device took so long for each work."""
        end = 0.0
        for work, call in zip(self.works, self.calls, strict=True):
            end = max(end, call) + seconds_of(work)
        return end


@dataclass(frozen=True)
class Samples:
    """Of a log."""

    used: list[Sample]
    num_compiling: int
    """Samples left out because a step was compiled in them, or may have been."""
    host: list[tuple[int, int, float]]
    """Items and rows that were packed for a launch, padding included and once a call, and seconds
    that the host needed from what it did before, a result or a call, to the call.
    """
    calls: list[tuple[float, float]]
    """Of a call of a launch, or of its head, the mean bucket and the mean seconds of the host."""


def samples_of(launches: list[LaunchEvent], *, waits_for_device: bool) -> Samples:
    """Cuts a log into samples.

    Args:
        launches: of one engine, in order.
        waits_for_device: whether the log was made so.
    """
    used: list[Sample] = []
    num_compiling = 0
    compiling = _compiling(launches)
    group: list[LaunchEvent] = []
    last_end = last_applied = 0.0
    for launch in launches:
        group.append(launch)
        # Alone on the device since it was dispatched, so that the host turned to it at once.
        is_alone = launch.launch_index == launch.record.index + 1 and (
            last_applied <= launch.scheduled
        )
        last_applied = launch.visible
        if not (waits_for_device or is_alone or launch.host_wait >= LEAST_WAIT):
            continue
        if any(one.record.index in compiling for one in group):
            num_compiling += 1
        else:
            used.append(_sample(group, last_end))
        # An engine that waits calls nothing before.
        last_end = 0.0 if waits_for_device else launch.ended
        group = []
    steady = [launch for launch in launches if launch.record.index not in compiling]
    return Samples(
        used, num_compiling, list(_host_times(launches, compiling)), list(map(_call, steady))
    )


def work_of(record: LaunchRecord) -> LaunchWork:
    """The passes or scores of a recorded launch, as a `Simulation` has them of one that it runs."""
    keys = dict.fromkeys(ItemKind, 0)
    if record.kind.runs_layers:
        for item in record.items:
            n = item.num_rows
            keys[item.kind] += n * item.first_position + n * (n + 1) // 2
    return LaunchWork(
        record.called_kind,
        record.bucket,
        record.num_rows,
        record.num_passes,
        decode_keys=keys[ItemKind.DECODE],
        prompt_keys=keys[ItemKind.PROMPT],
        num_calls=record.num_calls,
    )


def head_of(record: LaunchRecord) -> LaunchWork | None:
    """The head of a recorded launch; None without one, and of one that had nothing to do."""
    head = record.head
    if head is None:
        return None
    has_left = any(item.status is RowStatus.LEFT for item in record.items)
    if head.form == CONDITIONAL and not has_left:
        return None
    return LaunchWork.head(head.bucket, head.num_rows, head.form)


def _compiling(launches: list[LaunchEvent]) -> set[int]:
    """Launches during whose dispatch a step was compiled, or may have been: the first ones."""
    compiling: set[int] = set()
    num_dispatched, num_compilations = 0, -1
    for launch in launches:
        # Counted when a launch was applied, so what was dispatched since the one before had it.
        if launch.num_compilations > num_compilations:
            compiling.update(range(num_dispatched, launch.launch_index))
        num_dispatched, num_compilations = launch.launch_index, launch.num_compilations
    return compiling


def _sample(group: list[LaunchEvent], last_end: float) -> Sample:
    """A sample, which begins when the launch before it was done if it was called by then."""
    zero = max(group[0].started, last_end)
    works: list[LaunchWork] = []
    calls: list[float] = []
    for launch in group:
        record, head = launch.record, head_of(launch.record)
        works.append(work_of(record))
        calls.append(max(0.0, launch.started - zero))
        if head is not None:
            works.append(head)
            share = record.num_calls / _num_calls(record)
            called = launch.started + share * (launch.dispatched - launch.started)
            calls.append(max(0.0, called - zero))
    return Sample(tuple(works), tuple(calls), group[-1].ended - zero)


def _num_calls(record: LaunchRecord) -> int:
    return record.num_calls + (record.head is not None)


def _call(launch: LaunchEvent) -> tuple[float, float]:
    record = launch.record
    num_rows = record.bucket * record.num_calls + (record.head.bucket if record.head else 0)
    count = _num_calls(record)
    return num_rows / count, (launch.dispatched - launch.started) / count


def _host_times(
    launches: list[LaunchEvent], compiling: set[int]
) -> Iterator[tuple[int, int, float]]:
    """From what the host did last, a result or a call, to the next call, if that came at once."""
    ends = [launch.ended for launch in launches]
    visible = [launch.visible for launch in launches]
    for launch, after in pairwise(launches):
        record = after.record
        num_applied = bisect_right(visible, after.scheduled)
        is_idle = num_applied == record.index and _is_empty(launches[num_applied - 1])
        if is_idle or record.index in compiling:
            continue
        num_ended = bisect_right(ends, after.scheduled)
        last_end = ends[num_ended - 1] if num_ended else 0.0
        seconds = after.started - max(launch.dispatched, last_end)
        yield len(record.items) * record.num_calls, record.bucket * record.num_calls, seconds


def _is_empty(launch: LaunchEvent) -> bool:
    queues = launch.queues
    return queues.waiting + queues.prefill + queues.recurrent == 0
