"""A launch log as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Process 1 is the host: scheduling, call and readback of every launch. Process 2 has a track a slot:
what a request's rows did in each launch; where a slot has several prompt items in one, a track an
item. Queue lengths are counters, arrivals and tokens instants.
"""

from typing import Any

from looped.engine.events import EndEvent, LaunchEvent, LogEvent, RequestEvent
from looped.engine.records import ItemRecord
from looped.sched import ItemKind

from .timeline import places_in_slots

MICROSECONDS = 1e6
HOST, SLOTS = 1, 2
"""Process ids; a further log's are two higher."""


def to_chrome_trace(logs: list[tuple[str, tuple[LogEvent, ...]]]) -> dict[str, Any]:
    """The trace of one or more logs, side by side.

    Args:
        logs: a name and the events of each.
    """
    events: list[dict[str, Any]] = []
    for index, (name, log) in enumerate(logs):
        events += _log_events(name, log, 2 * index)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _log_events(name: str, log: tuple[LogEvent, ...], shift: int) -> list[dict[str, Any]]:
    host, slots = HOST + shift, SLOTS + shift
    events = [
        _metadata("process_name", host, 0, f"{name}: host"),
        _metadata("process_name", slots, 0, f"{name}: slots"),
        _metadata("thread_name", host, 0, "launches"),
    ]
    placed = [places_in_slots(one.record) for one in log if isinstance(one, LaunchEvent)]
    tracks_per_slot = max((count for items in placed for *_, count in items), default=1)
    seen: set[int] = set()
    for event in log:
        match event:
            case RequestEvent():
                events.append(_instant(f"request {event.request_id}", event.time, host))
            case EndEvent():
                title = f"end of {event.request_id}: {event.reason}"
                events.append(_instant(title, event.time, host))
            case LaunchEvent():
                events += _host_events(event, host)
                for item, place, _ in places_in_slots(event.record):
                    track = item.slot * tracks_per_slot + place
                    if track not in seen:
                        seen.add(track)
                        title = f"slot {item.slot}" + (f", item {place + 1}" if place else "")
                        events.append(_metadata("thread_name", slots, track, title))
                    events.append(_item_event(event, item, slots, track))
    return events


def _host_events(launch: LaunchEvent, process: int) -> list[dict[str, Any]]:
    record, queues = launch.record, launch.queues
    kind = record.kind.name.lower()
    arguments = {
        "index": record.index,
        "bucket": record.bucket,
        "real rows": record.num_rows,
        "padded rows": record.num_padded_rows,
        "passes": record.num_passes,
        "readbacks": record.num_readbacks,
        "compilations": launch.num_compilations,
        "mixed": record.is_mixed,
        "tokens": len(launch.tokens),
    }
    # The whole step is around its parts, so that they nest.
    step = _complete(kind, launch.scheduled, launch.visible, process, 0, arguments)
    events = [
        step,
        _complete("schedule and pack", launch.scheduled, launch.started, process, 0),
        _complete("call", launch.started, launch.dispatched, process, 0),
    ]
    if record.num_readbacks:
        events.append(_complete("readback", launch.dispatched, launch.ended, process, 0))
    counts = {
        "waiting": queues.waiting,
        "prefill": queues.prefill,
        "recurrent": queues.recurrent,
        "coda": queues.coda,
    }
    events.append(
        {
            "name": "queues",
            "ph": "C",
            "ts": MICROSECONDS * launch.visible,
            "pid": process,
            "args": counts,
        }
    )
    for token in launch.tokens:
        events.append(
            _instant(
                f"token {token.output_index} of {token.request_id}", launch.visible, process,
                {"loops": token.exit_depth, "token id": token.token_id},
            )
        )  # fmt: skip
    return events


def _item_event(launch: LaunchEvent, item: ItemRecord, process: int, track: int) -> dict[str, Any]:
    if launch.record.kind.runs_layers:
        what = "prompt" if item.kind is ItemKind.PROMPT else "decode"
        title = f"{what}, depth {item.depth}"
        if launch.record.num_passes > 1:
            title += f" to {item.depth + launch.record.num_passes - 1}"
    else:
        title = launch.record.kind.name.lower()
    arguments = {
        "request": item.request_id,
        "sample": item.sample_index,
        "first position": item.first_position,
        "rows": item.num_rows,
    }
    return _complete(title, launch.started, launch.ended, process, track, arguments)


def _complete(
    name: str,
    start: float,
    end: float,
    process: int,
    thread: int,
    arguments: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "X",
        "ts": MICROSECONDS * start,
        "dur": MICROSECONDS * (end - start),
        "pid": process,
        "tid": thread,
        "args": arguments or {},
    }


def _instant(
    name: str, time: float, process: int, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "ph": "i",
        "s": "p",
        "ts": MICROSECONDS * time,
        "pid": process,
        "tid": 0,
        "args": arguments or {},
    }


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
