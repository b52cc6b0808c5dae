"""`looped plot`: pictures and traces of launch logs."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.errors import UsageError

if TYPE_CHECKING:
    from looped.engine.events import LogEvent

logger = logging.getLogger(__name__)


def plot(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Launch logs.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the pictures; made if need be.")
    ] = Path(),
    trace: Annotated[
        Path | None,
        typer.Option(help="Write a trace for ui.perfetto.dev to this file, and no pictures."),
    ] = None,
    seconds: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Show this part of each log alone.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace files that exist.")] = False,
) -> None:
    """Draw launch logs: slots and rows by depth, and the latencies between tokens.

    Writes NAME-gantt.png, NAME-occupancy.png and NAME-itl.png for every log, and, for several,
    itl-by-arm.png, where logs of a benchmark go by their arm.
    """
    from looped.record.launch_log import read_launch_log
    from looped.record.timeline import Timeline

    span = parse_span(seconds)
    if trace is not None:
        refuse_existing([trace], overwrite=overwrite)
    read = [read_launch_log(path) for path in logs]
    names = [path.name.removesuffix(".gz").removesuffix(".jsonl") for path in logs]
    if len(set(names)) < len(names):
        raise UsageError(f"launch logs must differ in their names, got {', '.join(names)}")
    if trace is not None:
        write_trace(trace, [(name, log.events) for name, log in zip(names, read, strict=True)])
        return
    from looped.plots import draw_distributions, draw_log, require_matplotlib
    from looped.plots.draw import log_pictures

    require_matplotlib("--trace FILE needs no pictures")
    distributions = out / "itl-by-arm.png"
    planned = [path for name in names for path in log_pictures(out, name)]
    refuse_existing([*planned, *[distributions] * (len(logs) > 1)], overwrite=overwrite)
    out.mkdir(parents=True, exist_ok=True)
    latencies: dict[str, list[float]] = {}
    for name, log in zip(names, read, strict=True):
        timeline = Timeline(log.events)
        if not timeline.launches:
            logger.warning("%s holds no launch; nothing to draw", log.path)
        for path in draw_log(out, name, timeline, span=span):
            print(path)
        pooled = latencies.setdefault(log.meta.get("arm", name), [])
        pooled += [gap.seconds for request in timeline.tokens for gap in timeline.gaps(request)]
    if len(logs) > 1:
        draw_distributions(distributions, latencies)
        print(distributions)


def write_trace(path: Path, logs: "list[tuple[str, tuple[LogEvent, ...]]]") -> None:
    """One trace of all logs, beside its place and renamed."""
    from looped.record.trace_export import to_chrome_trace

    staged = path.with_name(f".{path.name}.partial")
    staged.write_text(json.dumps(to_chrome_trace(logs)) + "\n", encoding="utf-8")
    staged.replace(path)
    print(path)


def parse_span(text: str | None) -> tuple[float, float] | None:
    """Two seconds from "FROM:TO"."""
    if text is None:
        return None
    start, _, end = text.partition(":")
    try:
        span = float(start), float(end)
    except ValueError:
        raise UsageError(f"--seconds takes FROM:TO such as 1.5:2, got {text!r}") from None
    if not span[0] < span[1]:
        raise UsageError(f"--seconds must begin before it ends, got {text!r}")
    return span


def refuse_existing(paths: list[Path], *, overwrite: bool) -> None:
    """UsageError if a file is there already."""
    for path in paths:
        if path.exists() and not overwrite:
            raise UsageError(f"{path} exists; choose another place or pass --overwrite")
