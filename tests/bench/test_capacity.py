"""The search for a capacity on servers whose capacity is known."""

from dataclasses import dataclass
from random import Random

import pytest

from looped.errors import UsageError
from looped.measure.capacity import find_capacity


@dataclass
class Trial:
    is_sustained: bool
    is_limited_by_client: bool = False
    is_hopeless: bool = False


def find(measure, **options):
    return find_capacity(measure, **{"lowest": 1e-6, "precision": 1.1} | options)


def single_server(rate, *, service=0.1, patience=0.5, num_requests=4000):
    """An M/D/1 queue: constant service time, Poisson arrivals; 90 % must start within patience."""
    random, now, free, num_good = Random(1), 0.0, 0.0, 0
    for _ in range(num_requests):
        now += random.expovariate(rate)
        start = max(now, free)
        free = start + service
        num_good += start - now <= patience
    return Trial(num_good >= 0.9 * num_requests)


@pytest.mark.parametrize("start", [0.01, 1.0, 7.9, 500.0])
def test_the_capacity_of_a_queue_is_found_from_anywhere(start):
    found = find(single_server, start=start, precision=1.02)
    # P(wait <= 0.5 s) is 0.9 at about 80 % load.
    assert 7.5 < found.rate < 8.7
    assert 1.0 < found.failed_rate / found.rate <= 1.02
    assert single_server(found.rate).is_sustained
    assert not single_server(found.failed_rate).is_sustained
    assert not found.is_limited_by_client


def test_rates_are_doubled_until_one_fails_and_then_bisected():
    found = find(lambda rate: Trial(rate < 11), start=1.0, precision=1.2)
    rates = [rate for rate, _ in found.trials]
    assert rates[:5] == [1, 2, 4, 8, 16]
    assert rates[5] == pytest.approx((8 * 16) ** 0.5)
    assert found.rate == max(rate for rate, trial in found.trials if trial.is_sustained)


def test_a_server_that_sustains_nothing_and_one_that_sustains_all_end_the_search():
    nothing = find(lambda rate: Trial(False), start=1.0, most_trials=6)
    assert nothing.rate is None
    assert nothing.failed_rate == 1 / 32
    everything = find(lambda rate: Trial(True), start=1.0, most_trials=6)
    assert (everything.rate, everything.failed_rate) == (32, None)


def test_a_client_that_fails_first_is_named_as_the_limit():
    found = find(lambda rate: Trial(rate < 6, is_limited_by_client=rate >= 6), start=1.0)
    assert found.is_limited_by_client
    assert found.rate < 6
    # A client that fails far above is no limit: the server fails first.
    found = find(lambda rate: Trial(rate < 6, is_limited_by_client=rate >= 8), start=5.0)
    assert not found.is_limited_by_client


def test_a_search_ends_where_a_lower_rate_could_not_help():
    found = find(lambda rate: Trial(False, is_hopeless=rate < 0.3), start=1.0)
    assert [rate for rate, _ in found.trials] == [1.0, 0.5, 0.25]
    assert found.is_hopeless
    assert found.rate is None
    # One that is hopeless above a sustained rate does not end the bisection.
    found = find(lambda rate: Trial(rate < 3, is_hopeless=rate >= 3), start=1.0)
    assert 2.7 < found.rate < 3 < found.failed_rate < 3.3
    assert not found.is_hopeless


def test_no_rate_below_the_lowest_is_tried():
    found = find(lambda rate: Trial(False), start=1.0, lowest=0.2)
    assert [rate for rate, _ in found.trials] == [1.0, 0.5, 0.25]
    assert not found.is_hopeless


@pytest.mark.parametrize(
    ("start", "lowest", "precision"),
    [(0.0, 0.0, 1.1), (1.0, 0.1, 1.0), (float("inf"), 1.0, 1.1), (0.5, 1.0, 1.1)],
)
def test_arguments_that_cannot_be_are_refused(start, lowest, precision):
    with pytest.raises(UsageError, match="precision above 1"):
        find(single_server, start=start, lowest=lowest, precision=precision)
