"""Percentiles of known values, and what is not said about too few of them."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.measure.statistics import Latencies, Spread, percentile


def test_percentiles_of_known_values():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, percent) for percent in (0, 25, 50, 75, 100)] == [1, 2, 3, 4, 5]
    assert percentile(values, 90) == pytest.approx(4.6)
    assert percentile([7.0], 99) == 7


@given(st.lists(st.floats(-1e6, 1e6), min_size=2), st.integers(1, 99))
def test_percentiles_agree_with_the_standard_librarys(values, percent):
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(values, percent) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 101), ([1.0], -1)])
def test_a_percentile_of_nothing_or_of_nonsense_is_refused(values, percent):
    with pytest.raises(ValueError, match="expected values and a percentage"):
        percentile(values, percent)


def test_a_99th_percentile_needs_a_thousand_values():
    values = [float(value) for value in range(1000)]
    assert Latencies.of(values[:999]).p99 is None
    assert Latencies.of(values).p99 == pytest.approx(989.01)
    assert Latencies.of([]) is None


def test_quartiles_of_known_ratios():
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3, 2, 4, 5)
    assert Spread.of([]) is None
