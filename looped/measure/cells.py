"""Numbers as cells and rows of a Markdown table, the same in every benchmark's page."""

from collections.abc import Iterator, Sequence

from .page import table_row
from .statistics import MIN_VALUES_FOR_P99, Latencies, Spread

SCALES = {"s": (1e3, "ms")}
"""Units that are shown in another one: factor and name."""
NOTHING = "-"
"""Stands where there is no number."""


def shown_unit(unit: str) -> str:
    """The unit that `metric_cell` shows."""
    return SCALES.get(unit, (1.0, unit))[1]


def metric_cell(spread: Spread | None, unit: str) -> str:
    """Median and quartiles, in the shown unit."""
    if spread is None:
        return NOTHING
    factor = SCALES.get(unit, (1.0, ""))[0]
    quartiles = (number(factor * value) for value in (spread.first_quartile, spread.third_quartile))
    return f"{number(factor * spread.median)} [{', '.join(quartiles)}]"


def latency_rows(title: str, pooled: Sequence[Latencies | None]) -> Iterator[str]:
    """Percentiles in milliseconds, a row each, and how many values there were."""
    for label, attribute in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("max", "largest")):
        cells = []
        for latencies in pooled:
            value = None if latencies is None else getattr(latencies, attribute)
            if value is not None:
                cells.append(number(1e3 * value))
            else:
                cells.append(
                    NOTHING if latencies is None else f"{NOTHING} (< {MIN_VALUES_FOR_P99})"
                )
        yield table_row(f"{title} {label}, ms", cells)
    counts = [str(latencies.count) if latencies else NOTHING for latencies in pooled]
    yield table_row(f"{title}, count", counts)


def number_cell(value: float | None) -> str:
    """A number, or that there is none."""
    return NOTHING if value is None else number(value)


def number(value: float) -> str:
    """Three digits that count, and no exponent."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{2 if size < 10 else 1}f}" if size >= 1 else f"{value:.3g}"
