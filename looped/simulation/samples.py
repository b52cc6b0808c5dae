"""What a launch log says about costs: what launches had to do, and how long that took.

A launch that the host does not read has no end that the host could see. In a log whose engine
waited for every launch (`--launch-log-waits`) each has one, and is a sample of its own. In another
log the launches from one read to the next are one sample together: from the first call to the end
of the read, in which the device runs them in order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from looped.launch_events import LaunchEvent
from looped.records import LaunchRecord
from looped.sched import ItemKind, LaunchWork


@dataclass(frozen=True, slots=True)
class Sample:
    """Launches that ran one after the other, and the seconds that they took together."""

    works: tuple[LaunchWork, ...]
    seconds: float


@dataclass(frozen=True)
class Samples:
    """Of a log."""

    used: list[Sample]
    num_compiling: int
    """Samples left out because a step was compiled in them, or just before."""
    host: list[tuple[int, int, float]]
    """Items and bucket of a launch, and seconds that the host needed around it."""


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
            works = tuple(work_of(one.record) for one in group)
            used.append(Sample(works, launch.ended - group[0].started))
        num_compilations = launch.num_compilations
        group = []
    return Samples(used, num_compiling, list(_host_times(launches)))


def work_of(record: LaunchRecord) -> LaunchWork:
    """A recorded launch in numbers, as `LaunchWork.of` has them of a scheduled one."""
    keys = dict.fromkeys(ItemKind, 0)
    if record.kind.runs_layers:
        for item in record.items:
            n = item.num_rows
            keys[item.kind] += n * item.first_position + n * (n + 1) // 2
    return LaunchWork(
        record.kind,
        record.bucket,
        record.num_rows,
        record.num_passes,
        decode_keys=keys[ItemKind.DECODE],
        prompt_keys=keys[ItemKind.PROMPT],
    )


def _host_times(launches: list[LaunchEvent]) -> Iterator[tuple[int, int, float]]:
    """From the end of the device's work to the next call, where there was something to do."""
    for launch, after in pairwise(launches):
        queues = launch.queues
        is_busy = queues.waiting + queues.prefill + queues.recurrent + queues.coda > 0
        if is_busy and after.num_compilations == launch.num_compilations:
            record = after.record
            yield len(record.items), record.bucket, after.started - launch.ended
