"""What launches carry: rows by kind and depth, stacked, over time; padding on top."""

from pathlib import Path

from looped.sched import ItemKind
from looped.timeline import Timeline, item_depths

from .figures import axes_for, depth_colour
from .gantt import injection_times, planes_of

Key = tuple[bool, int]
"""Whether the rows are of prompts, and their depth."""


def draw_occupancy(
    path: Path, title: str, timeline: Timeline, span: tuple[float, float] | None
) -> None:
    """Steps over the passes' starts; a launch of several passes is a step a pass."""
    num_planes = planes_of(timeline)
    keys = [(is_prompt, depth) for is_prompt in (False, True) for depth in range(num_planes)]
    times: list[float] = []
    rows: dict[Key, list[int]] = {key: [] for key in keys}
    padding: list[int] = []
    for launch in timeline.launches:
        record = launch.record
        if not record.num_passes or (span and not span[0] <= launch.started <= span[1]):
            continue
        for index in range(record.num_passes):
            share = index / record.num_passes
            times.append(launch.started + share * (launch.ended - launch.started))
            counts = dict.fromkeys(keys, 0)
            for item in record.items:
                depth = item_depths(record, item)[index]
                counts[item.kind is ItemKind.PROMPT, depth] += item.num_rows
            for key in keys:
                rows[key].append(counts[key])
            padding.append(record.num_padded_rows)
    with axes_for(path, f"{title}: rows of each pass, by depth") as axes:
        axes.stackplot(
            times,
            *(rows[key] for key in keys),
            padding,
            step="post",
            colors=[*(depth_colour(*key, num_planes) for key in keys), "#e5e5e5"],
            labels=[
                *(
                    f"{'prompt' if is_prompt else 'decode'}, depth {depth}"
                    for is_prompt, depth in keys
                ),
                "padding",
            ],
        )
        for time in injection_times(timeline):
            if not span or span[0] <= time <= span[1]:
                axes.axvline(time, color="black", linewidth=0.6, linestyle=":")
        axes.set_xlabel("seconds (dotted: a prompt is injected)")
        axes.set_ylabel("rows")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
