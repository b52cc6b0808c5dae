"""Summaries as pages: what was simulated, on which costs, and what came of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from looped.bench.cells import SCALES, number_cell, shown_unit
from looped.bench.page import description_lines, table_head, table_row
from looped.bench.statistics import Numbers
from looped.sched import CostModel

from .runs import ESTIMATE
from .summary import UNITS


def costs_json(costs: CostModel) -> dict[str, Any]:
    """What a result says of its cost table."""
    return {"name": costs.name, "is_estimate": costs.is_estimate, "source": costs.source}


def caution(costs: CostModel) -> Iterator[str]:
    """A line over results that rest on numbers nobody measured; none otherwise."""
    if costs.is_estimate:
        yield f"**{ESTIMATE.upper()}**: cost table {costs.name} was computed, not measured."
        yield ""


def numbers_table(columns: Mapping[str, Numbers]) -> Iterator[str]:
    """A row for every number of a summary, a column for every run; times in milliseconds."""
    yield from table_head("", list(columns))
    for name, unit in UNITS.items():
        factor, _ = SCALES.get(unit, (1.0, unit))
        values = [numbers[name] for numbers in columns.values()]
        cells = [number_cell(None if value is None else factor * value) for value in values]
        yield table_row(", ".join(filter(None, (name.replace("_", " "), shown_unit(unit)))), cells)


def run_page(
    description: Mapping[str, Any], costs: CostModel, columns: Mapping[str, Numbers]
) -> str:
    """A page of one or several runs."""
    lines: Sequence[str] = [
        *caution(costs),
        *description_lines(description),
        "",
        *numbers_table(columns),
    ]
    return "\n".join(lines) + "\n"
