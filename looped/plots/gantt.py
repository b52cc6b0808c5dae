"""Slots over time: a bar is a request's rows in one launch, coloured by kind and depth."""

from pathlib import Path
from typing import Any

from looped.engine.events import LaunchEvent
from looped.engine.records import ItemRecord, LaunchRecord
from looped.record.timeline import Timeline, has_run, item_depths, places_in_slots
from looped.sched import ItemKind

from .figures import HEAD_COLOUR, HEAD_WIDTH, PADDING_COLOUR, axes_for, depth_colour

MOST_LAUNCHES = 60
"""Launches shown unless a span is given; more are too narrow to tell apart."""
BAR_HEIGHT = 0.8
"""Of a slot; slots are 1 apart."""


def draw_gantt(
    path: Path, title: str, timeline: Timeline, span: tuple[float, float] | None
) -> None:
    """Bars over the time in which the device had a launch; one of several passes is split evenly,
    and a slot with several prompt items is cut into strips. A row that the head looked at ends in
    its colour.

    The host hears of a launch's end when it comes to read it, so bars are late, and pushed
    together, where the device was faster, unless the log was made with waits.
    """
    from matplotlib.patches import Patch

    launches = shown_launches(timeline, span)
    num_planes = planes_of(timeline)
    with axes_for(path, f"{title}: slots by depth") as axes:
        spans = {id(launch): window for launch, window in timeline.device_spans()}
        for launch in launches:
            start, seconds = spans[id(launch)].start, spans[id(launch)].seconds
            for item, bottom, height in bars_of(launch.record):
                for offset, width, colour in parts_of(launch.record, item, num_planes):
                    axes.broken_barh(
                        [(start + offset * seconds, width * seconds)],
                        (bottom, height),
                        facecolor=colour,
                        linewidth=0,
                    )
        axes.set_xlabel("seconds")
        axes.set_ylabel("slot")
        slots = {item.slot for launch in launches for item in launch.record.items}
        axes.set_yticks(sorted(slots))
        legend = [
            Patch(color=HEAD_COLOUR, label="LM head"),
            Patch(color=PADDING_COLOUR, label="had ended"),
        ]
        for is_prompt, name in ((False, "decode"), (True, "prompt")):
            for depth in range(num_planes):
                colour = depth_colour(is_prompt, depth, num_planes)
                legend.append(Patch(color=colour, label=f"{name}, depth {depth}"))
        axes.legend(handles=legend, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")


def parts_of(
    record: LaunchRecord, item: ItemRecord, num_planes: int
) -> list[tuple[float, float, Any]]:
    """Begin, width and colour of an item's passes, and of the head if that looked at its row; the
    launch lasts from 0 to 1."""
    depths = item_depths(record, item)
    width = 1 / (max(len(depths), 1) + (HEAD_WIDTH if record.head else 0.0))
    parts: list[tuple[float, float, Any]] = [
        (index * width, width, depth_colour(item.kind is ItemKind.PROMPT, depth, num_planes))
        for index, depth in enumerate(depths)
    ] or [(0.0, width, HEAD_COLOUR if has_run(item) else PADDING_COLOUR)]
    if item.status is not None:
        parts.append((len(parts) * width, HEAD_WIDTH * width, HEAD_COLOUR))
    return parts


def bars_of(record: LaunchRecord) -> list[tuple[ItemRecord, float, float]]:
    """Every item with the bottom and the height of its bar; items of one slot share its height."""
    bars = []
    for item, place, num_items in places_in_slots(record):
        height = BAR_HEIGHT / num_items
        bars.append((item, item.slot - BAR_HEIGHT / 2 + place * height, height))
    return bars


def shown_launches(timeline: Timeline, span: tuple[float, float] | None) -> list[LaunchEvent]:
    """Launches of the span; without one, some around the first prompt that joins decoding."""
    launches = timeline.launches
    if span is not None:
        return [one for one in launches if span[0] <= one.started <= span[1]]
    times = injection_times(timeline)
    if not times:
        return launches[:MOST_LAUNCHES]
    first = next((i for i, one in enumerate(launches) if one.started >= times[0]), 0)
    first = max(0, first - MOST_LAUNCHES // 6)
    return launches[first : first + MOST_LAUNCHES]


def injection_times(timeline: Timeline) -> list[float]:
    """Arrivals while another request had tokens and was not over: prompts that join decoding."""
    spans = [
        (tokens[0].time, timeline.ends[name].time if name in timeline.ends else float("inf"))
        for name, tokens in timeline.tokens.items()
    ]
    arrivals = sorted(request.time for request in timeline.requests.values())
    return [time for time in arrivals if any(start <= time < end for start, end in spans)]


def planes_of(timeline: Timeline) -> int:
    """Depths that the log knows of."""
    depths = (
        depth
        for launch in timeline.launches
        for item in launch.record.items
        for depth in item_depths(launch.record, item)
    )
    return max(depths, default=0) + 1
