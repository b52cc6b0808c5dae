"""Statistics over pairs of runs."""

from math import inf
from statistics import NormalDist

import pytest

from looped.simulation.sweeps.paired import T_QUANTILES, Interval, paired_numbers


def test_an_interval_is_students():
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.high - 2.0 == pytest.approx(4.303 * 1.0 / 3**0.5)
    assert interval.low == pytest.approx(4.0 - interval.high)


def test_one_value_says_nothing_of_its_spread():
    interval = Interval.of([5.0])
    assert (interval.low, interval.high) == (-inf, inf)
    assert interval.to_json() == {"mean": 5.0, "low": None, "high": None}


def test_quantiles_fall_to_the_normal_one():
    assert list(T_QUANTILES) == sorted(T_QUANTILES, reverse=True)
    assert len(T_QUANTILES) == 30
    assert T_QUANTILES[-1] > NormalDist().inv_cdf(0.975)
    many = Interval.of([float(n % 2) for n in range(50)])
    assert many.high == pytest.approx(0.5 + 1.96 * (0.25 * 50 / 49) ** 0.5 / 50**0.5)


def test_pairs_share_what_varies_between_seeds():
    baseline = [{"x": value, "y": None} for value in (1.0, 10.0, 100.0)]
    runs = [{"x": 2.0 * one["x"], "y": 1.0} for one in baseline]
    compared = paired_numbers(runs, baseline)
    assert list(compared) == ["x"]
    ratio = compared["x"].ratio
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert compared["x"].difference.mean == pytest.approx(37.0)
    assert compared["x"].num_pairs == 3


def test_a_pair_without_the_number_is_left_out_and_nothing_above_zero_has_no_ratio():
    compared = paired_numbers([{"x": 0.0}, {"x": None}], [{"x": 1.0}, {"x": 1.0}])
    assert compared["x"].num_pairs == 1
    assert compared["x"].ratio is None
    assert compared["x"].difference.mean == -1.0
