"""What launches carry over time: rows by kind and depth, rows of the LM head, and padding."""

from collections import Counter
from pathlib import Path

from looped.engine.events import LaunchEvent
from looped.record.timeline import Timeline, item_depths
from looped.sched import ItemKind

from .figures import CODA_COLOUR, axes_for, depth_colour
from .gantt import injection_times, planes_of

CODA, PADDING = "LM head", "padding"
PADDING_COLOUR = "#e5e5e5"


def draw_occupancy(
    path: Path, title: str, timeline: Timeline, span: tuple[float, float] | None
) -> None:
    """Stacked steps, each from a launch's call on; a launch of several passes is a step a pass."""
    num_planes = planes_of(timeline)
    colours = {
        label(is_prompt, depth): depth_colour(is_prompt, depth, num_planes)
        for is_prompt in (False, True)
        for depth in range(num_planes)
    } | {CODA: CODA_COLOUR, PADDING: PADDING_COLOUR}
    times: list[float] = []
    steps: list[Counter[str]] = []
    for launch in timeline.launches:
        if span and not span[0] <= launch.started <= span[1]:
            continue
        passes = rows_by_pass(launch)
        for index, rows in enumerate(passes):
            share = index / len(passes)
            times.append(launch.started + share * (launch.ended - launch.started))
            steps.append(rows)
    with axes_for(path, f"{title}: rows of each pass, by depth") as axes:
        axes.stackplot(
            times,
            *([rows[name] for rows in steps] for name in colours),
            step="post",
            colors=list(colours.values()),
            labels=list(colours),
        )
        for time in injection_times(timeline):
            if not span or span[0] <= time <= span[1]:
                axes.axvline(time, color="black", linewidth=0.6, linestyle=":")
        axes.set_xlabel("seconds (dotted: a prompt is injected)")
        axes.set_ylabel("rows")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")


def rows_by_pass(launch: LaunchEvent) -> list[Counter[str]]:
    """Rows of each pass by label; an LM head is one pass of its own kind."""
    record = launch.record
    passes = []
    for index in range(max(record.num_passes, 1)):
        rows = Counter({PADDING: record.num_padded_rows})
        for item in record.items:
            depths = item_depths(record, item)
            is_prompt = item.kind is ItemKind.PROMPT
            rows[label(is_prompt, depths[index]) if depths else CODA] += item.num_rows
        passes.append(rows)
    return passes


def label(is_prompt: bool, depth: int) -> str:
    """What the legend calls rows of a kind at a depth."""
    return f"{'prompt' if is_prompt else 'decode'}, depth {depth}"
