"""The Triton kernels in Triton's interpreter; test_triton_interpreter.py runs this file.

A process of its own: the kernels are decorated for the interpreter when they are imported. Only
float32 and float16, since the interpreter's products of bfloat16 are garbage.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    AttentionCase,
    Decode,
    PaddedShape,
    Prompt,
    bits,
    build_case,
    expected_attention,
    random_mix,
)
from triton_interpreter import interpret

from looped.pallas_kernels import NO_BLOCK, kv_write, triton_write
from looped.pallas_kernels.triton_attention import attend, work_list
from looped.pallas_kernels.triton_tiles import tiles_for

# Largest absolute difference from the oracle, by q's dtype. Values are standard normal, so no
# output is larger than about 5.
TOLERANCE = {
    # As for the other backends.
    "float32": 5e-6,
    # Half a unit in the last place of values below 8, and weights rounded to 11 bits.
    "float16": 2**-9 + 2**-10,
}


def shape(rows, seqs, heads, kv_heads, head_dim, block_size, longest, dtype="float32"):
    return PaddedShape(
        num_rows=rows,
        max_num_seqs=seqs,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        max_model_len=longest,
        query_dtype=dtype,
        pool_dtype=dtype,
    )


# Groups of 1, 4, 6 and 8; head_dim 64, 80, 96, 128, 256 (and 16, of the tiny fixtures); blocks of
# 8 to 128; both dtypes.
SHAPES = {
    "two rows": shape(2, 16, 2, 2, 64, 16, 300),
    "tiny fixture": shape(16, 4, 4, 2, 16, 8, 150),
    "groups of 4": shape(40, 4, 4, 1, 64, 8, 300),
    "groups of 6": shape(48, 3, 6, 1, 80, 16, 300),
    "groups of 8": shape(40, 3, 8, 1, 128, 32, 300),
    "head_dim 96": shape(24, 3, 2, 2, 96, 64, 300),
    "head_dim 256": shape(16, 2, 2, 1, 256, 16, 120),
    "odd blocks": shape(24, 3, 3, 3, 64, 12, 200),
    "large blocks": shape(24, 3, 1, 1, 128, 128, 500),
    "long context": shape(8, 2, 1, 1, 64, 64, 2000, "float16"),
    "float16": shape(48, 4, 8, 2, 128, 16, 300, "float16"),
    "float16, groups of 6": shape(32, 3, 6, 1, 64, 8, 300, "float16"),
}


def run(case: AttentionCase, *, is_fused: bool, architecture: str = "sm_90") -> np.ndarray:
    # Fewer splits than shipped, so that a split has several key tiles.
    tiles = replace(tiles_for(architecture, case.q.dtype.name, case.q.shape[-1]), num_splits=3)
    scale = case.q.shape[-1] ** -0.5
    return attend(interpret, tiles, *case.arguments(), scale, is_fused=is_fused)


def check(case: AttentionCase, *, is_fused: bool) -> None:
    out = run(case, is_fused=is_fused)
    assert out.dtype == case.q.dtype
    expected = expected_attention(case, case.q.shape[-1] ** -0.5)
    np.testing.assert_allclose(
        out.astype(np.float64), expected, rtol=0, atol=TOLERANCE[case.q.dtype.name]
    )
    is_nobody = ~expected.any(axis=(1, 2))
    assert not bits(out[is_nobody]).any(), "a row of no sequence must be zero"


def check_random(name: str, index: int, *, is_fused: bool) -> None:
    rng = np.random.default_rng([list(SHAPES).index(name), index])
    decodes, prompts = random_mix(rng, SHAPES[name])
    case = build_case(rng, SHAPES[name], decodes, prompts, at_end=index % 2 == 0)
    check(case, is_fused=is_fused)


# 30 batches of each form over the twelve shapes.
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("index", range(30))
def test_random_mixed_batches_agree_with_the_oracle(index, is_fused):
    check_random(list(SHAPES)[index % len(SHAPES)], index, is_fused=is_fused)


@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("index", range(200))
def test_many_random_mixed_batches_agree_with_the_oracle(index, is_fused):
    check_random(list(SHAPES)[index % len(SHAPES)], 1000 + index, is_fused=is_fused)


@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_chunk_of_128_rows_behind_a_long_context_agrees_with_the_oracle(is_fused):
    long = shape(160, 4, 4, 1, 64, 16, 2000)
    case = build_case(
        np.random.default_rng(0), long, [Decode(2000), None], [Prompt(1800, 128), Prompt(0, 17)]
    )
    check(case, is_fused=is_fused)


@pytest.mark.parametrize("is_fused", [False, True])
def test_lengths_around_blocks_and_key_tiles_agree_with_the_oracle(is_fused):
    for edge in (8, 32, 128):
        decodes = [Decode(edge + offset) for offset in (-1, 0, 1)]
        case = build_case(
            np.random.default_rng(edge),
            SHAPES["groups of 4"],
            decodes,
            [Prompt(edge - 1, 2), Prompt(edge, 1), Prompt(0, 33)],
        )
        check(case, is_fused=is_fused)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("group", [16, 17, 24, 32, 65])
def test_every_query_head_of_a_large_group_attends(group, is_fused):
    """A decode tile has 16 queries; a larger group takes several tiles."""
    rng, num_kv_heads = np.random.default_rng(group), 2
    padded = shape(12, 3, group * num_kv_heads, num_kv_heads, 64, 16, 150)
    case = build_case(rng, padded, [Decode(150), None, Decode(7)], [Prompt(30, 5)], at_end=True)
    check(case, is_fused=is_fused)


@pytest.mark.parametrize("is_fused", [False, True])
def test_an_empty_launch_is_all_zeros(is_fused):
    case = build_case(np.random.default_rng(1), SHAPES["two rows"], [], [])
    check(case, is_fused=is_fused)


@pytest.mark.parametrize("name", ["groups of 6", "float16"])
def test_a_row_keeps_its_bits_whatever_its_neighbours_are(name):
    """Alone; and in another place, among NaN queries and longer contexts."""
    padded, rng = SHAPES[name], np.random.default_rng(2)
    mine, chunk = Decode(77, seed=1), Prompt(50, 9, seed=2)
    alone = run(build_case(rng, padded, [mine], [chunk]), is_fused=False)
    crowd = build_case(rng, padded, [Decode(299), mine], [Prompt(200, 30), chunk], at_end=True)
    crowd.q[0] = np.nan
    crowd.q[2:-9] = np.nan
    out = run(crowd, is_fused=False)
    np.testing.assert_array_equal(bits(out[1]), bits(alone[0]))
    np.testing.assert_array_equal(bits(out[-9:]), bits(alone[1:10]))


def test_the_fused_form_keeps_every_bit_where_the_tiles_are_the_same():
    case = build_case(
        np.random.default_rng(3), SHAPES["float16"], [Decode(200), Decode(3)], [Prompt(30, 20)]
    )
    np.testing.assert_array_equal(bits(run(case, is_fused=True)), bits(run(case, is_fused=False)))


def test_the_work_list_names_each_tile_of_each_item_once():
    rng = np.random.default_rng(4)
    for _ in range(50):
        num_items, group, tile = rng.integers(1, 9), rng.choice([1, 4, 6, 8]), rng.choice([16, 64])
        rows = rng.integers(0, 40, num_items) * rng.integers(0, 2, num_items)
        total = max(1, int(rows.sum()) + int(rng.integers(5)))
        items, first = (np.asarray(x) for x in work_list(total, jnp.asarray(rows), group, tile))
        assert len(items) == num_items + -(-total * group // tile)
        found = [(int(i), p - int(f)) for p, (i, f) in enumerate(zip(items, first, strict=True))]
        expected = [
            (item, index)
            for item in range(num_items)
            for index in range(-(-rows[item] * group // tile))
        ]
        assert [work for work in found if work[0] >= 0] == expected
        assert all(item == -1 for item in items[len(expected) :])


@pytest.mark.parametrize(
    ("rows_dtype", "pool_dtype"),
    [("float32", "float32"), ("float32", "float16"), ("float16", "float32")],
)
@pytest.mark.parametrize(("num_kv_heads", "head_dim"), [(2, 64), (3, 80)])
def test_the_write_lands_where_the_reference_puts_it(
    rows_dtype, pool_dtype, num_kv_heads, head_dim
):
    """Padding rows write nowhere; canaries are every other bit of the pools."""
    rng = np.random.default_rng(5)
    num_layers, num_blocks, block_size, num_rows = 3, 7, 8, 12
    size = (num_layers * num_blocks, num_kv_heads, block_size, head_dim)
    pools = [rng.standard_normal(size).astype(pool_dtype) for _ in range(2)]
    entries = rng.standard_normal((2, num_rows, num_kv_heads, head_dim)).astype(rows_dtype)
    places = rng.choice(num_blocks * block_size, num_rows, replace=False)
    places[:2] = [num_blocks * block_size - 1, 0]  # the last slot of a layer, and its first
    ids = (places // block_size).astype(np.int32)
    ids[3::4] = NO_BLOCK
    offsets = (places % block_size).astype(np.int32)
    for layer in range(num_layers):
        first_block = layer * num_blocks
        expected = kv_write.write_kv(*map(jnp.asarray, pools), *entries, ids, offsets, first_block)
        written = triton_write.write_kv(
            *pools, *entries, ids, offsets, first_block, launch=interpret
        )
        for one, other in zip(written, expected, strict=True):
            np.testing.assert_array_equal(bits(one), bits(np.asarray(other)))
