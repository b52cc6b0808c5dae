"""Packed batches: a function of seed and step, every example whole, the loss on completions."""

import random

import jax
import numpy as np
import pytest

from looped.errors import UsageError
from looped.training.batches import BLOCK, NO_EXAMPLE, Batches, Example, token_shares

NUM_TOKENS = 50


def draw(rng):
    lengths = rng.randint(1, 7), rng.randint(1, 6)
    return Example(*([rng.randrange(1, NUM_TOKENS) for _ in range(n)] for n in lengths))


def batches(**changes):
    options = {"batch_size": 5, "sequence_length": 24, "seed": 3} | changes
    return Batches(draw, **options)


def same(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def test_a_batch_is_a_function_of_seed_and_step():
    forward = [batches().at(step) for step in range(4)]
    backward = [batches().at(step) for step in reversed(range(4))][::-1]
    assert all(map(same, forward, backward))
    assert not same(forward[0], forward[1])
    assert not same(forward[0], batches(seed=4).at(0))


@pytest.mark.parametrize("prompt_weight", [0.0, 0.25])
def test_every_example_is_whole_and_its_completion_is_what_counts(prompt_weight):
    drawn = []

    def remember(rng):
        drawn.append(draw(rng))
        return drawn[-1]

    batch = Batches(
        remember, batch_size=5, sequence_length=24, seed=3, prompt_weight=prompt_weight
    ).at(0)
    found = []
    for row in range(5):
        for segment in range(1, batch.segments[row].max() + 1):
            (places,) = np.nonzero(batch.segments[row] == segment)
            assert (np.diff(places) == 1).all()
            np.testing.assert_array_equal(batch.positions[row, places], np.arange(len(places)))
            ids = [*batch.token_ids[row, places], batch.targets[row, places[-1]]]
            assert ids[1:] == list(batch.targets[row, places])
            weights = batch.weights[row, places]
            num_prompt = len(places) - int((weights == 1.0).sum())
            assert list(weights[:num_prompt]) == [prompt_weight] * num_prompt
            found.append((tuple(ids[: num_prompt + 1]), tuple(ids[num_prompt + 1 :])))
    whole = [(tuple(one.prompt_ids), tuple(one.completion_ids)) for one in drawn[:-1]]
    assert sorted(found) == sorted(whole)
    is_empty = batch.segments == NO_EXAMPLE
    assert not batch.weights[is_empty].any()


def test_a_batch_is_the_same_whichever_were_made_before_it():
    fresh = {step: batches().at(step) for step in (0, 1, BLOCK - 1, BLOCK, BLOCK + 2)}
    one = batches()
    for step in (BLOCK + 2, 1, 0, 1, BLOCK - 1, BLOCK, BLOCK - 1):
        assert same(one.at(step), fresh[step])


def test_long_examples_are_as_likely_as_short_ones():
    """Half of the draws are too long for most of the room that is left."""

    def short_or_long(rng):
        return Example([1], [2] * rng.choice([2, 20]))

    made = Batches(short_or_long, batch_size=4, sequence_length=24, seed=0)
    lengths = []
    for step in range(4 * BLOCK):
        batch = made.at(step)
        ends = (batch.segments > 0) & (np.diff(batch.segments, append=0, axis=1) != 0)
        lengths += list(batch.positions[ends] + 1)
    assert set(lengths) == {2, 20}
    share = np.mean(np.array(lengths) == 20)
    assert abs(share - 0.5) < 3 * 0.5 / len(lengths) ** 0.5, share


@pytest.mark.parametrize("ids", [[], [5]])
def test_an_example_without_a_token_to_predict_is_refused(ids):
    made = Batches(lambda rng: Example([], ids), batch_size=2, sequence_length=8, seed=0)
    with pytest.raises(UsageError, match="fewer than two tokens"):
        made.at(0)


def test_rows_are_well_filled():
    filled = np.mean([batches(batch_size=16).at(step).segments > 0 for step in range(10)])
    assert filled > 0.85


def test_shares_of_the_loss_sum_to_one():
    shares = np.asarray(token_shares(batches().at(0)))
    np.testing.assert_allclose(shares.sum(), 1.0, rtol=1e-6)


def test_an_example_longer_than_a_row_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match="raise --sequence-length"):
        Batches(
            lambda rng: Example([1] * 20, [2] * 6), batch_size=2, sequence_length=24, seed=0
        ).at(0)


def test_an_empty_prompt_makes_all_but_the_first_token_count():
    batch = Batches(
        lambda rng: Example([], [rng.randrange(1, 9) for _ in range(25)]),
        batch_size=1,
        sequence_length=24,
        seed=0,
    ).at(0)
    assert batch.weights.sum() == 24


def test_python_draws_the_same_whatever_came_before():
    random.seed(1)
    first = batches().at(0)
    random.seed(2)
    assert same(first, batches().at(0))
