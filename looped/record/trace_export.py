"""A launch log as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Process 1 is the host: what it does, and below it every launch from its scheduling to its tokens,
on as many tracks as launches were out at once. Process 2 has a track a slot: what a request's rows
did in each launch while the device had it, the head behind it included; where a slot has several
prompt items in one, a track an item. Queue lengths are counters, arrivals and tokens instants.
"""

from typing import Any

from looped.engine.events import EndEvent, LaunchEvent, LogEvent, RequestEvent
from looped.engine.records import ItemRecord
from looped.sched import ItemKind

from .timeline import Timeline, Window, item_depths, places_in_slots

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
    launches = [event for event in log if isinstance(event, LaunchEvent)]
    tracks = _tracks_of(launches)
    events = [
        _metadata("process_name", host, 0, f"{name}: host"),
        _metadata("process_name", slots, 0, f"{name}: slots"),
        _metadata("thread_name", host, 0, "what the host does"),
    ]
    for track in sorted(set(tracks)):
        events.append(_metadata("thread_name", host, track, f"launches, {track}"))
    for launch, track in zip(launches, tracks, strict=True):
        events += _host_events(launch, host, track)
    events += _slot_events(launches, slots)
    for event in log:
        match event:
            case RequestEvent():
                events.append(_instant(f"request {event.request_id}", event.time, host))
            case EndEvent():
                title = f"end of {event.request_id}: {event.reason}"
                events.append(_instant(title, event.time, host))
    return events


def _tracks_of(launches: list[LaunchEvent]) -> list[int]:
    """For each launch the first track, from 1, on which no earlier one is out any more."""
    ends: list[float] = []
    tracks = []
    for launch in launches:
        free = (index for index, end in enumerate(ends) if end <= launch.scheduled)
        index = next(free, len(ends))
        ends[index : index + 1] = [launch.visible]
        tracks.append(index + 1)
    return tracks


def _slot_events(launches: list[LaunchEvent], process: int) -> list[dict[str, Any]]:
    events = []
    placed = [places_in_slots(launch.record) for launch in launches]
    tracks_per_slot = max((count for items in placed for *_, count in items), default=1)
    seen: set[int] = set()
    for launch, span in Timeline(launches).device_spans():
        for item, place, _ in places_in_slots(launch.record):
            track = item.slot * tracks_per_slot + place
            if track not in seen:
                seen.add(track)
                title = f"slot {item.slot}" + (f", item {place + 1}" if place else "")
                events.append(_metadata("thread_name", process, track, title))
            events.append(_item_event(launch, span, item, process, track))
    return events


def _host_events(launch: LaunchEvent, process: int, track: int) -> list[dict[str, Any]]:
    record, queues = launch.record, launch.queues
    kind = record.kind.name.lower()
    arguments: dict[str, Any] = {
        "index": record.index,
        "bucket": record.bucket,
        "real rows": record.num_rows,
        "padded rows": record.num_padded_rows,
        "passes": record.num_passes,
        "readbacks": record.num_readbacks,
        "compilations": launch.num_compilations,
        "mixed": record.is_mixed,
        "tokens": len(launch.tokens),
        "launches dispatched": launch.launch_index,
    }
    if record.head is not None:
        arguments["head"] = record.head.form
        arguments["head bucket"] = record.head.bucket
        arguments["head rows"] = record.head.num_rows
    events = [
        _complete(kind, launch.scheduled, launch.visible, process, track, arguments),
        _complete("schedule and pack", launch.scheduled, launch.started, process, 0),
        _complete("call", launch.started, launch.dispatched, process, 0),
        _complete("wait", launch.awaited, launch.ended, process, 0),
        _complete("apply", launch.ended, launch.visible, process, 0),
    ]
    counts = {
        "waiting": queues.waiting,
        "prefill": queues.prefill,
        "recurrent": queues.recurrent,
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


def _item_event(
    launch: LaunchEvent, span: Window, item: ItemRecord, process: int, track: int
) -> dict[str, Any]:
    depths = item_depths(launch.record, item)
    what = "prompt" if item.kind is ItemKind.PROMPT else "decode"
    if depths:
        title = f"{what}, depth {depths[0]}"
        if len(depths) > 1:
            title += f" to {depths[-1]}"
    else:
        title = f"{what}, ended" if item.depth is None else launch.record.kind.name.lower()
    arguments: dict[str, Any] = {
        "request": item.request_id,
        "sample": item.sample_index,
        "first position": item.first_position,
        "rows": item.num_rows,
    }
    if item.status is not None:
        arguments["head"] = item.status.name.lower()
    return _complete(title, span.start, span.end, process, track, arguments)


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
