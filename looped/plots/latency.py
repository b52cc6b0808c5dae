"""Inter-token latencies: over time with injections marked, and their distributions by arm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from looped.record.timeline import Timeline

from .figures import WINDOW_COLOUR, axes_for
from .gantt import injection_times


def draw_latency(
    path: Path, title: str, timeline: Timeline, span: tuple[float, float] | None
) -> None:
    """A dot a gap, at its end; a line at every request that joins others that decode."""
    gaps = [gap for name in timeline.tokens for gap in timeline.gaps(name)]
    if span is not None:
        gaps = [gap for gap in gaps if span[0] <= gap.end <= span[1]]
    with axes_for(path, f"{title}: inter-token latency") as axes:
        for time in injection_times(timeline):
            if not span or span[0] <= time <= span[1]:
                axes.axvline(time, color=WINDOW_COLOUR, linewidth=1)
        axes.plot(
            [gap.end for gap in gaps],
            [1e3 * gap.seconds for gap in gaps],
            linestyle="",
            marker=".",
            markersize=3,
            color="#3b6ea8",
        )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds (line: a prompt is injected)")
        axes.set_ylabel("gap between two tokens of a request, ms")


def draw_distributions(
    path: Path,
    latencies: Mapping[str, Sequence[float]],
    *,
    title: str = "inter-token latency by arm",
    values_name: str = "gaps",
) -> None:
    """Share of values that are longer than a time, one line an arm, both axes logarithmic.

    Args:
        path: the PNG to write.
        latencies: pooled values in seconds, by arm; arms without any are left out.
        title: what is compared.
        values_name: what the values are, in the plural.
    """
    with axes_for(path, f"{title}: share of {values_name} above") as axes:
        for name, values in latencies.items():
            if values:
                ordered = sorted(values)
                shares = [1 - index / len(ordered) for index in range(len(ordered))]
                label = f"{name} ({len(ordered)} {values_name})"
                axes.step([1e3 * value for value in ordered], shares, where="pre", label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("ms")
        axes.set_ylabel(f"share of {values_name} at least as long")
        axes.grid(visible=True, which="both", alpha=0.3)
        if any(latencies.values()):
            axes.legend()
