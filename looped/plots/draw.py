"""Every picture of a log: a Gantt chart, occupancy by depth, and latencies."""

from pathlib import Path

from looped.record.timeline import Timeline

from .gantt import draw_gantt
from .latency import draw_distributions, draw_latency
from .occupancy import draw_occupancy

__all__ = ["draw_distributions", "draw_log", "log_pictures"]


def log_pictures(folder: Path, name: str) -> list[Path]:
    """Files that `draw_log` makes."""
    return [folder / f"{name}-{picture}.png" for picture in ("gantt", "occupancy", "itl")]


def draw_log(
    folder: Path, name: str, timeline: Timeline, *, span: tuple[float, float] | None = None
) -> list[Path]:
    """Draws a log's three pictures; returns their paths.

    Args:
        folder: where to; it exists.
        name: how the files' names begin.
        timeline: the log; without launches there is nothing to draw, and no file.
        span: seconds to show, from and to; None shows all, and in the Gantt chart the stretch
            around the first prompt that comes while others decode.
    """
    if not timeline.launches:
        return []
    gantt, occupancy, itl = log_pictures(folder, name)
    draw_gantt(gantt, name, timeline, span)
    draw_occupancy(occupancy, name, timeline, span)
    draw_latency(itl, name, timeline, span)
    return [gantt, occupancy, itl]
