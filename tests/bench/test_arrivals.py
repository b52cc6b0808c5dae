"""Lists of arrivals: reproducible, Poisson, and made ahead."""

from itertools import pairwise

import pytest

from looped.errors import UsageError
from looped.measure.arrivals import Prompt, poisson_arrivals, random_prompts

PROMPTS = [Prompt((1, 2), 3)] * 4000


def gaps(arrivals):
    return [arrivals[0].time] + [b.time - a.time for a, b in pairwise(arrivals)]


def test_gaps_are_exponential_with_the_rates_mean():
    values = gaps(poisson_arrivals(PROMPTS, 5.0, seed=1))
    mean = sum(values) / len(values)
    assert mean == pytest.approx(0.2, rel=0.05)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    assert variance == pytest.approx(mean**2, rel=0.15)  # a constant gap would have none
    assert sum(value > 0.2 for value in values) / len(values) == pytest.approx(0.368, abs=0.03)


def test_the_list_follows_from_the_seed_alone():
    first = poisson_arrivals(PROMPTS, 2.0, seed=7)
    assert poisson_arrivals(PROMPTS, 2.0, seed=7) == first
    assert poisson_arrivals(PROMPTS, 2.0, seed=8) != first
    assert [arrival.index for arrival in first] == list(range(len(PROMPTS)))


def test_another_rate_has_the_same_bursts():
    slow, fast = (poisson_arrivals(PROMPTS, rate, seed=7) for rate in (1.0, 4.0))
    assert [arrival.time for arrival in slow] == pytest.approx([4 * one.time for one in fast])


def test_prompts_are_reproducible_and_share_nothing():
    sizes = {"prompt_tokens": 20, "output_tokens": 5, "vocab_size": 50}
    first = random_prompts(30, **sizes, seed=3, name="run0")
    assert random_prompts(30, **sizes, seed=3, name="run0") == first
    other = random_prompts(30, **sizes, seed=3, name="run1")
    assert len({prompt.token_ids for prompt in first + other}) == 60
    assert all(len(prompt.token_ids) == 20 and prompt.output_tokens == 5 for prompt in first)
    assert {token for prompt in first for token in prompt.token_ids} == set(range(50))


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(UsageError, match="rate above 0"):
        poisson_arrivals(PROMPTS, rate, seed=0)


def test_sizes_that_are_none_are_refused():
    with pytest.raises(UsageError, match="output_tokens must be at least 1, got 0"):
        random_prompts(1, prompt_tokens=1, output_tokens=0, vocab_size=9, seed=0, name="")
