"""What a launch log says about costs: what launches had to do, and how long that took.

The host hands launches over, and the device begins with each in its call, or when everything before
it is done. So the time from a call to an end that the host saw later is the device's only if the
device had not run dry meanwhile: a host that schedules, packs and calls the next launch may be the
slower of the two. A `Sample` keeps the moments of the calls, for the fit to tell.

A launch that the host does not read has no end that the host could see. In a log whose engine
waited for every launch (`--launch-log-waits`) each has one, and is a sample of its own. In another
log the launches from one read to the next are one sample together; its first one finds the device
idle, since the read before it had waited for all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from looped.engine.events import LaunchEvent
from looped.engine.records import LaunchRecord
from looped.sched import ItemKind, LaunchWork


@dataclass(frozen=True, slots=True)
class Sample:
    """Launches that the device ran one after the other, the first on an idle device."""

    works: tuple[LaunchWork, ...]
    calls: tuple[float, ...]
    """When each was called, in seconds since the first one."""
    seconds: float
    """When the host saw the end of the last one, in seconds since the first call."""

    def end(self, seconds_of: Callable[[LaunchWork], float]) -> float:
        """What `seconds` would be if the device took so long for each launch."""
        end = 0.0
        for work, call in zip(self.works, self.calls, strict=True):
            end = max(end, call) + seconds_of(work)
        return end


@dataclass(frozen=True)
class Samples:
    """Of a log."""

    used: list[Sample]
    num_compiling: int
    """Samples left out because a step was compiled in them, or just before."""
    host: list[tuple[int, int, float]]
    """Items and rows that were packed for a launch, padding included and once a call, and seconds
    that the host needed from the one before it, its result if it was read or awaited, to the call.
    """
    calls: list[tuple[int, float]]
    """Bucket of a launch, and seconds that a call of it took the host."""


def samples_of(launches: list[LaunchEvent], *, waits_for_device: bool) -> Samples:
    """Cuts a log into samples.

    Args:
        launches: of one engine, in order.
        waits_for_device: whether the log was made so.
    """
    used: list[Sample] = []
    num_compiling = 0
    group: list[LaunchEvent] = []
    num_compilations = launches[0].num_compilations if launches else 0
    for launch in launches:
        group.append(launch)
        if not waits_for_device and not launch.record.num_readbacks:
            continue
        # The first launch of a log may have compiled its step, too, and nothing says so.
        if launch.num_compilations > num_compilations or group[0].record.index == 0:
            num_compiling += 1
        else:
            used.append(_sample(group))
        num_compilations = launch.num_compilations
        group = []
    calls = [
        (one.record.bucket, (one.dispatched - one.started) / one.record.num_calls)
        for one in launches
    ]
    return Samples(used, num_compiling, list(_host_times(launches)), calls)


def work_of(record: LaunchRecord) -> LaunchWork:
    """A recorded launch in numbers, as a `Simulation` has them of one that it runs."""
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


def _sample(group: list[LaunchEvent]) -> Sample:
    zero = group[0].started
    return Sample(
        works=tuple(work_of(one.record) for one in group),
        calls=tuple(one.started - zero for one in group),
        seconds=group[-1].ended - zero,
    )


def _host_times(launches: list[LaunchEvent]) -> Iterator[tuple[int, int, float]]:
    """From a result, or the return of a call without one, to the next call, if that could come."""
    for launch, after in pairwise(launches):
        queues = launch.queues
        is_busy = queues.waiting + queues.prefill + queues.recurrent + queues.coda > 0
        if is_busy and after.num_compilations == launch.num_compilations:
            record = after.record
            num_items, num_rows = len(record.items), record.bucket
            seconds = after.started - launch.ended
            yield num_items * record.num_calls, num_rows * record.num_calls, seconds
