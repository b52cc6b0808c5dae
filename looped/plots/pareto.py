"""What prompts gain against what decoding pays: throughput against latency, a line a policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import axes_for

Place = tuple[float, float]
"""Prompt token-loops per second, and a gap between tokens in seconds."""


def draw_pareto(
    path: Path, places: Mapping[str, Sequence[Place]], *, title: str, latency_name: str
) -> None:
    """A dot a run, by policy, and a step line through those that no other run beats.

    Args:
        path: the PNG to write.
        places: by policy.
        title: of the picture.
        latency_name: what the second number is.
    """
    with axes_for(path, title) as axes:
        for name, own in places.items():
            axes.plot(
                [loops for loops, _ in own],
                [1e3 * seconds for _, seconds in own],
                linestyle="",
                marker="o",
                label=name,
            )
        best = front([place for own in places.values() for place in own])
        axes.step(
            [loops for loops, _ in best],
            [1e3 * seconds for _, seconds in best],
            where="pre",
            color="grey",
            linewidth=1,
            zorder=0,
        )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("prompt token-loops per second")
        axes.set_ylabel(f"{latency_name}, ms")
        if places:
            axes.legend()


def draw_sweep(path: Path, rows: Sequence[Mapping[str, Any]], *, is_estimate: bool) -> None:
    """The picture of a simulated sweep.

    Args:
        path: the PNG to write.
        rows: `policy`, and the means of a point's numbers, each.
        is_estimate: whether they rest on costs that nobody measured, which the title says.
    """
    places: dict[str, list[Place]] = {}
    has_p99 = all(row["itl_p99"] is not None for row in rows)
    latency = "itl_p99" if has_p99 else "itl_p95"
    for row in rows:
        if row[latency] is not None and row["prompt_token_loops_per_second"] is not None:
            place = (row["prompt_token_loops_per_second"], row[latency])
            places.setdefault(row["policy"], []).append(place)
    title = "prompts against decoding, simulated" + (" (estimate)" if is_estimate else "")
    name = f"{latency[-3:]} of the gaps between tokens"
    draw_pareto(path, places, title=title, latency_name=name)


def front(places: Sequence[Place]) -> list[Place]:
    """Places that no other one beats in both numbers: more loops, shorter gaps. In order."""
    best: list[Place] = []
    for place in sorted(set(places), key=lambda place: (-place[0], place[1])):
        if not best or place[1] < best[-1][1]:
            best.append(place)
    return best[::-1]
