"""Numbers and rows as the tables of all benchmarks have them."""

from collections.abc import Iterator, Sequence

from .statistics import MIN_VALUES_FOR_P99, Latencies


def number(value: float) -> str:
    """Three digits that count, and no exponent."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{2 if size < 10 else 1}f}" if size >= 1 else f"{value:.3g}"


def latency_rows(title: str, pooled: Sequence[Latencies | None]) -> Iterator[str]:
    """Percentiles in milliseconds, a row each, and how many values there were."""
    for label, attribute in (("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("max", "largest")):
        cells = []
        for latencies in pooled:
            value = None if latencies is None else getattr(latencies, attribute)
            if value is not None:
                cells.append(number(1e3 * value))
            else:
                cells.append("-" if latencies is None else f"- (< {MIN_VALUES_FOR_P99})")
        yield f"| {title} {label}, ms | {' | '.join(cells)} |"
    counts = (str(latencies.count) if latencies else "-" for latencies in pooled)
    yield f"| {title}, count | {' | '.join(counts)} |"
