"""What launches carry over time: rows by kind and depth, rows of the LM head, and padding."""

from collections import Counter
from pathlib import Path

from looped.engine.events import LaunchEvent
from looped.record.timeline import Timeline, has_run, item_depths
from looped.sched import ItemKind

from .figures import HEAD_COLOUR, HEAD_WIDTH, PADDING_COLOUR, axes_for, depth_colour
from .gantt import injection_times, planes_of

HEAD, PADDING = "LM head", "padding"


def draw_occupancy(
    path: Path, title: str, timeline: Timeline, span: tuple[float, float] | None
) -> None:
    """Stacked steps, each from when the device had a launch; one of several passes is a step a
    pass, and the head behind it a narrow step at its end."""
    num_planes = planes_of(timeline)
    colours = {
        label(is_prompt, depth): depth_colour(is_prompt, depth, num_planes)
        for is_prompt in (False, True)
        for depth in range(num_planes)
    } | {HEAD: HEAD_COLOUR, PADDING: PADDING_COLOUR}
    times: list[float] = []
    steps: list[Counter[str]] = []
    for launch, window in timeline.device_spans():
        if span and not span[0] <= launch.started <= span[1]:
            continue
        passes = rows_by_pass(launch)
        head = rows_of_head(launch)
        width = (window.end - window.start) / (len(passes) + (HEAD_WIDTH if head else 0.0))
        for index, rows in enumerate([*passes, head] if head else passes):
            times.append(window.start + index * width)
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
    """Rows of each pass by label; a score is one pass of the LM head. Rows that had ended count as
    padding."""
    record = launch.record
    passes = []
    for index in range(max(record.num_passes, 1)):
        rows = Counter({PADDING: record.num_padded_rows})
        for item in record.items:
            depths = item_depths(record, item)
            is_prompt = item.kind is ItemKind.PROMPT
            name = HEAD if has_run(item) else PADDING
            rows[label(is_prompt, depths[index]) if depths else name] += item.num_rows
        passes.append(rows)
    return passes


def rows_of_head(launch: LaunchEvent) -> Counter[str]:
    """Rows of the head behind a launch by label; nothing where none followed."""
    head = launch.record.head
    if head is None:
        return Counter()
    return Counter({HEAD: head.num_rows, PADDING: head.bucket - head.num_rows})


def label(is_prompt: bool, depth: int) -> str:
    """What the legend calls rows of a kind at a depth."""
    return f"{'prompt' if is_prompt else 'decode'}, depth {depth}"
