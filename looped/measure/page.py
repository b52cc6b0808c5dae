"""What the pages of all benchmarks have in common, besides their tables' cells."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOT_SHOWN = frozenset({"benchmark", "schema", "rounds", "is_complete"})
"""What a page's title and sentences say already."""


def description_lines(description: Mapping[str, Any]) -> Iterator[str]:
    """What was run on what, as a list. `dropped` is by run, and then by reason."""
    for name, value in description.items():
        if value is None or name in NOT_SHOWN:
            continue
        if name == "dropped":
            for run, reasons in value.items():
                told = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
                yield f"* conversations looked at and dropped, {run}: {told}"
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            yield f"* {name.replace('_', ' ')}: {shown}"


def table_head(corner: str, columns: Sequence[str]) -> Iterator[str]:
    """The first two lines of a table."""
    yield table_row(corner, columns)
    yield f"|---|{'---|' * len(columns)}"


def table_row(title: str, cells: Sequence[str]) -> str:
    """One line of it."""
    return f"| {title} | {' | '.join(cells)} |".replace("|  |", "| |")
