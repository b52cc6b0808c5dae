"""What a server's /metrics adds to what its client sees, where it is one of looped's."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "looped_"
COUNTED = "_total"


def read_counters(page: str) -> dict[str, float]:
    """Counters and gauges by name, without prefix, summed over their labels.

    Args:
        page: in Prometheus's text format; other servers' names are left out.
    """
    values: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        if family.type in ("counter", "gauge"):
            for sample in family.samples:
                if sample.name.startswith(PREFIX) and not sample.name.endswith("_created"):
                    values[sample.name.removeprefix(PREFIX)] += sample.value
    return dict(values)


def counted_between(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """By how much every counter rose; names lose their `_total`."""
    return {
        name.removesuffix(COUNTED): round(value - before.get(name, 0.0))
        for name, value in after.items()
        if name.endswith(COUNTED)
    }
