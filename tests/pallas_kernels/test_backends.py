"""ragged_paged_attention: one suite of values for every backend, against a float64 oracle.

Pallas runs in its interpreter here. It accepts kernels that do not lower to Triton, so each tile
configuration is held by test_lowering.py as well. The same tests marked `gpu` run on hardware.
"""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import Decode, Prompt, build_case, expected_attention, random_mix
from attention_suite import SHAPES, Target, each_target
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.pallas_kernels import TILES, tiles

# The fused launch runs the same programs: fewer shapes show that each lands where it belongs.
FUSED_SHAPES = ["groups of 4", "groups of 6", "bfloat16"]
NUM_BATCHES = 30


def random_batch(index: int, names: list[str]):
    """Batch `index` of the suite, over the shapes in turn."""
    rng = np.random.default_rng(index)
    shape = SHAPES[names[index % len(names)]]
    decodes, prompts = random_mix(rng, shape)
    return build_case(rng, shape, decodes, prompts, at_end=rng.random() < 0.5)


@functools.lru_cache(maxsize=NUM_BATCHES)
def batch_with_oracle(index: int):
    """Default batches with what is right, kept for the next backend."""
    case = random_batch(index, list(SHAPES))
    return case, expected_attention(case, case.q.shape[-1] ** -0.5)


def shapes_of(target: Target) -> list[str]:
    return FUSED_SHAPES if target.backend.endswith("_fused") else list(SHAPES)


@each_target
@pytest.mark.parametrize("index", range(NUM_BATCHES))
def test_random_mixed_batches_agree_with_the_oracle(target, index):
    if target.backend.endswith("_fused"):
        target.check(random_batch(index, FUSED_SHAPES))
    else:
        target.check(*batch_with_oracle(index))


@pytest.mark.slow
@each_target
def test_many_random_mixed_batches_agree_with_the_oracle(target):
    for index in range(NUM_BATCHES, NUM_BATCHES + 200):
        target.check(random_batch(index, shapes_of(target)))


@each_target
@settings(max_examples=30, deadline=None)
@given(
    decodes=st.lists(st.none() | st.builds(Decode, st.integers(1, 600)), max_size=7),
    prompts=st.lists(st.builds(Prompt, st.integers(0, 580), st.integers(1, 19)), max_size=3),
    at_end=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_mix_agrees_with_the_oracle(target, decodes, prompts, at_end, seed):
    rng = np.random.default_rng(seed)
    target.check(build_case(rng, SHAPES["groups of 4"], decodes, prompts, at_end=at_end))


@each_target
@pytest.mark.parametrize("name", ["groups of 4", "groups of 6"])
def test_lengths_around_blocks_key_tiles_and_splits_agree_with_the_oracle(target, name):
    shape, rng = SHAPES[name], np.random.default_rng(0)
    for edge in (shape.block_size, 64, 128, 512):
        decodes = [Decode(edge + offset) for offset in (-1, 0, 1)]
        prompts = [Prompt(edge - 1, 2), Prompt(edge, 1), Prompt(0, edge % 8 + 1)]
        target.check(build_case(rng, shape, decodes, prompts))


@each_target
@pytest.mark.parametrize("count", [9, 10, 11, 127, 128])
def test_a_chunk_around_a_tile_may_end_exactly_at_the_last_row(target, count):
    rng = np.random.default_rng(2)
    case = build_case(rng, SHAPES["groups of 6"], [None] * 2, [Prompt(300, count)], at_end=True)
    item = int(np.argmax(case.prompt_rows))
    assert case.prompt_first_row[item] + case.prompt_rows[item] == len(case.q)
    target.check(case)


@each_target
def test_as_many_one_row_items_as_fit_have_a_tile_each(target):
    """The work list at its longest: every item ends in a tile that is not full."""
    shape, rng = SHAPES["groups of 4"], np.random.default_rng(3)
    for count in (1, 9):
        prompts = [Prompt(5 * index, count) for index in range(shape.num_sequences)]
        target.check(build_case(rng, shape, [], prompts, at_end=True))


@each_target
def test_neighbours_that_are_not_finite_do_not_reach_a_row(target):
    shape, rng = SHAPES["groups of 4"], np.random.default_rng(4)
    case = build_case(rng, shape, [Decode(70), Decode(300)], [Prompt(9, 20), Prompt(100, 20)])
    expected = expected_attention(case, shape.head_dim**-0.5)
    case.q[[0, *range(2, 22), 42]] = np.nan
    out = target.attend(case)
    np.testing.assert_allclose(
        out[[1, *range(22, 42)]], expected[[1, *range(22, 42)]], atol=target.tolerance("float32")
    )
    assert not out[42:].any()


@each_target
def test_an_empty_launch_is_all_zeros(target):
    target.check(build_case(np.random.default_rng(5), SHAPES["groups of 4"], [], []))


@pytest.mark.parametrize("architecture", TILES)
@pytest.mark.parametrize("name", ["groups of 4", "large blocks", "bfloat16", "wide bfloat16"])
def test_the_tiles_of_every_architecture_agree_with_the_oracle(architecture, name):
    shape, rng = SHAPES[name], np.random.default_rng(6)
    case = build_case(rng, shape, *random_mix(rng, shape))
    Target("pallas", architecture=architecture).check(case)


def test_every_tile_configuration_is_interpreted():
    """By the test before this one. Warps and stages do not exist in the interpreter."""
    interpreted = {
        tiles.tile_configuration(
            architecture, SHAPES[name].head_dim, jnp.dtype(SHAPES[name].pool_dtype)
        )
        for architecture in TILES
        for name in ("groups of 4", "large blocks", "bfloat16", "wide bfloat16")
    }
    assert interpreted == {row for table in TILES.values() for row in table}
