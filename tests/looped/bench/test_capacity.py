"""The search for a capacity on servers whose capacity is known."""

from dataclasses import dataclass
from random import Random

import pytest

from looped.bench.capacity import find_capacity
from looped.errors import UsageError


@dataclass
class Trial:
    is_sustained: bool
    is_valid: bool = True


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
    found = find_capacity(single_server, start=start, precision=1.02)
    # P(wait <= 0.5 s) is 0.9 at about 80 % load.
    assert 7.5 < found.rate < 8.7
    assert 1.0 < found.failed_rate / found.rate <= 1.02
    assert single_server(found.rate).is_sustained
    assert not single_server(found.failed_rate).is_sustained
    assert not found.is_limited_by_client


def test_rates_are_doubled_until_one_fails_and_then_bisected():
    found = find_capacity(lambda rate: Trial(rate < 11), start=1.0, precision=1.2)
    rates = [rate for rate, _ in found.trials]
    assert rates[:5] == [1, 2, 4, 8, 16]
    assert rates[5] == pytest.approx((8 * 16) ** 0.5)
    assert found.rate == max(rate for rate, trial in found.trials if trial.is_sustained)


def test_a_server_that_sustains_nothing_and_one_that_sustains_all_end_the_search():
    nothing = find_capacity(lambda rate: Trial(False), start=1.0, precision=1.1, most_trials=6)
    assert nothing.rate is None
    assert nothing.failed_rate == 1 / 32
    everything = find_capacity(lambda rate: Trial(True), start=1.0, precision=1.1, most_trials=6)
    assert (everything.rate, everything.failed_rate) == (32, None)


def test_a_client_that_fails_first_is_named_as_the_limit():
    found = find_capacity(
        lambda rate: Trial(is_sustained=rate < 6, is_valid=rate < 6), start=1.0, precision=1.5
    )
    assert found.is_limited_by_client
    assert found.rate < 6


@pytest.mark.parametrize(("start", "precision"), [(0.0, 1.1), (1.0, 1.0), (float("inf"), 1.1)])
def test_arguments_that_cannot_be_are_refused(start, precision):
    with pytest.raises(UsageError, match="precision above 1"):
        find_capacity(single_server, start=start, precision=precision)
