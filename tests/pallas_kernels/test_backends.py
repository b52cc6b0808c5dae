"""ragged_paged_attention: one suite of values for every backend, against a float64 oracle.

Pallas runs in its interpreter here, by default on three shapes. The interpreter accepts kernels
that do not lower to Triton, so test_pallas_lowering.py holds each tile configuration as well.
Triton runs in its own interpreter where test_triton_interpreter.py starts this file again. The same
tests marked `gpu` run on hardware.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
from attention_cases import (
    AttentionCase,
    Decode,
    PaddedShape,
    Prompt,
    build_case,
    expected_attention,
)
from attention_suite import (
    BRIEF_IN_PALLAS,
    IS_INTERPRETING_TRITON,
    SHAPES,
    each_target_on,
    is_served,
    random_batch,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.pallas_kernels import BACKENDS, DEFAULT_ARCHITECTURE, ragged_paged_attention
from looped.pallas_kernels.pallas.tiles import TILES, PallasTiles, tiles_for

NUM_BATCHES = 4


@functools.lru_cache(maxsize=2 * NUM_BATCHES * len(SHAPES))
def batch_with_oracle(index: int, shape: PaddedShape) -> tuple[AttentionCase, np.ndarray]:
    """Default batches with what is right, kept for the next backend."""
    case = random_batch(index, shape)
    return case, expected_attention(case, case.q.shape[-1] ** -0.5)


@each_target_on(*SHAPES)
def test_random_mixed_batches_agree_with_the_oracle(target, name):
    for index in range(NUM_BATCHES):
        target.check(*batch_with_oracle(index, target.small_shape(name)))


def test_the_random_batches_read_more_than_one_layer():
    """So that a layer's first block counts, in the shapes that the interpreter takes by default."""
    for name in BRIEF_IN_PALLAS:
        cases = [random_batch(index, SHAPES[name]) for index in range(NUM_BATCHES)]
        assert len({int(case.first_block) for case in cases}) > 1, name


@pytest.mark.slow
@each_target_on(*SHAPES)
def test_many_random_mixed_batches_agree_with_the_oracle(target, name):
    for index in range(NUM_BATCHES, NUM_BATCHES + 18):
        target.check(random_batch(index, target.shape(name)))


def test_every_tile_of_the_pallas_kernels_is_interpreted():
    """By the random batches. Warps and stages do not exist in the interpreter."""

    def in_interpreter(tiles: PallasTiles) -> PallasTiles:
        unused = dict.fromkeys(
            ("decode_warps", "decode_stages", "prompt_warps", "prompt_stages"), 0
        )
        return replace(tiles, **unused)

    def product_dtype(shape: PaddedShape) -> str:
        return shape.query_dtype if shape.query_dtype == shape.pool_dtype else "float32"

    interpreted = {
        in_interpreter(tiles_for(DEFAULT_ARCHITECTURE, product_dtype(shape), shape.head_dim))
        for shape in SHAPES.values()
    }
    shipped = {in_interpreter(tiles) for table in TILES.values() for tiles in table}
    assert shipped == interpreted


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (backend, name)
        for backend in BACKENDS
        for name, shape in SHAPES.items()
        if not is_served(backend, shape)
    ],
)
def test_a_shape_that_a_backend_does_not_serve_is_refused(backend, name):
    case = build_case(np.random.default_rng(0), SHAPES[name], [], [])
    with pytest.raises(ValueError, match=r"of one dtype.*choose backend xla"):
        ragged_paged_attention(*case.arguments(), 1.0, backend=backend)


@each_target_on("groups of 4")
@settings(max_examples=4 if IS_INTERPRETING_TRITON else 30, deadline=None)
@given(
    decodes=st.lists(st.none() | st.builds(Decode, st.integers(1, 600)), max_size=7),
    prompts=st.lists(st.builds(Prompt, st.integers(0, 580), st.integers(1, 19)), max_size=3),
    at_end=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_mix_agrees_with_the_oracle(target, name, decodes, prompts, at_end, seed):
    rng = np.random.default_rng(seed)
    target.check(build_case(rng, SHAPES[name], decodes, prompts, at_end=at_end))


@each_target_on("groups of 4", "groups of 6")
def test_lengths_around_blocks_key_tiles_and_splits_agree_with_the_oracle(target, name):
    shape, rng = SHAPES[name], np.random.default_rng(0)
    edges = (shape.block_size, 64, 128, 512)
    for edge in edges[: 3 if IS_INTERPRETING_TRITON else 4]:
        decodes = [Decode(edge + offset) for offset in (-1, 0, 1)]
        prompts = [Prompt(edge - 1, 2), Prompt(edge, 1), Prompt(0, edge % 8 + 1)]
        target.check(build_case(rng, shape, decodes, prompts))


@each_target_on("groups of 4", "groups of 6")
def test_a_chunk_around_a_tile_may_end_exactly_at_the_last_row(target, name):
    """Tiles have room for 16 rows of the one and for 10 of the other."""
    shape, rng = SHAPES[name], np.random.default_rng(2)
    for count in (9, 10, 11, 15, 16, 17, shape.num_rows - 33, shape.num_rows - 32):
        case = build_case(rng, shape, [None] * 2, [Prompt(300, count)], at_end=True)
        item = int(np.argmax(case.metadata.prompt_rows))
        last = case.metadata.prompt_first_row[item] + case.metadata.prompt_rows[item]
        assert last == len(case.q)
        target.check(case)


@each_target_on("groups of 4", "window of 3")
def test_as_many_one_row_items_as_fit_have_a_tile_each(target, name):
    """The work list at its longest: every item ends in a tile that is not full."""
    shape, rng = SHAPES[name], np.random.default_rng(3)
    for count in (1, shape.num_rows // shape.num_items):
        prompts = [Prompt(5 * index, count) for index in range(shape.num_items)]
        target.check(build_case(rng, shape, [], prompts, at_end=True))


@each_target_on("window of 3")
def test_decode_rows_stand_beside_more_prompt_items_than_there_are_requests(target, name):
    """Tables, lengths and rows of the two kinds are of different lengths."""
    shape, rng = SHAPES[name], np.random.default_rng(9)
    decodes = [Decode(90), None, Decode(1), Decode(257)]
    prompts = [Prompt(11 * index, 1 + index % 4) for index in range(shape.num_items)]
    for at_end in (False, True):
        target.check(build_case(rng, shape, decodes, prompts, at_end=at_end))


@each_target_on("groups of 4")
def test_neighbours_that_are_not_finite_do_not_reach_a_row(target, name):
    shape, rng = SHAPES[name], np.random.default_rng(4)
    case = build_case(rng, shape, [Decode(70), Decode(300)], [Prompt(9, 20), Prompt(100, 20)])
    expected = expected_attention(case, shape.head_dim**-0.5)
    case.q[[0, *range(2, 22), 42]] = np.nan
    out = target.attend(case)
    np.testing.assert_allclose(
        out[[1, *range(22, 42)]], expected[[1, *range(22, 42)]], atol=target.tolerance("float32")
    )
    assert not out[42:].any()


@each_target_on("groups of 4")
def test_an_empty_launch_is_all_zeros(target, name):
    target.check(build_case(np.random.default_rng(5), SHAPES[name], [], []))
