"""Medians out of a histogram's counts."""

import pytest

from looped.bench.serve.metrics_page import MetricsPage, median_of_counts

INF = float("inf")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, None),
        ({1.0: 0, INF: 0}, None),
        ({1.0: 10, 2.0: 10, INF: 10}, 0.5),
        ({1.0: 0, 2.0: 8, INF: 10}, 1.625),
        ({1.0: 5, 2.0: 5, 4.0: 10, INF: 10}, 1.0),
        ({1.0: 2, 4.0: 2, INF: 10}, 4.0),  # it says no more than that it is larger
    ],
)
def test_the_median_lies_within_its_bucket(counts, expected):
    assert median_of_counts(counts) == expected


def test_what_rose_between_two_looks_is_counted():
    before = MetricsPage({"launches_total": 3.0, "requests_waiting": 2.0}, {1.0: 4, INF: 6})
    after = MetricsPage({"launches_total": 8.0, "requests_running": 1.0}, {1.0: 8, INF: 10})
    assert after.counted_since(before) == {"launches": 5}
    assert after.median_queue_since(before) == 0.5
    assert (before.load, after.load, MetricsPage().load) == (2, 1, 0)
    assert before.median_queue_since(before) is None
