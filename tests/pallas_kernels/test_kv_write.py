"""Writes into the KV pools: what was asked lands, every other bit stays, nothing is copied."""

import jax
import numpy as np
import pytest
from attention_cases import bits
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.pallas_kernels import NO_BLOCK, copy_positions, write_kv

NUM_LAYERS, NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM = 3, 6, 3, 4, 24
NUM_ROWS, NUM_TARGETS = 5, 3

write = jax.jit(write_kv, donate_argnums=(0, 1))
copy = jax.jit(copy_positions, static_argnames="num_layers", donate_argnums=(0, 1))

# Canaries: block 0 and the last block of every layer belong to nobody.
block_ids = st.integers(1, NUM_BLOCKS - 2)
offsets = st.integers(0, BLOCK_SIZE - 1)
places = st.lists(st.tuples(block_ids, offsets), max_size=NUM_ROWS, unique=True)


def random_pools(dtype="float32"):
    rng = np.random.default_rng(0)
    shape = (NUM_LAYERS * NUM_BLOCKS, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    return [rng.standard_normal(shape).astype(jax.numpy.dtype(dtype)) for _ in range(2)]


def on_device(arrays):
    return [jax.device_put(array, may_alias=False) for array in arrays]


def assert_same_bits(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(bits(one), bits(other))


@settings(max_examples=60, deadline=None)
@given(places=places, layer=st.integers(0, NUM_LAYERS - 1), order=st.permutations(range(NUM_ROWS)))
def test_rows_land_in_their_layer_and_all_else_keeps_its_bits(places, layer, order):
    pools = random_pools()
    rng = np.random.default_rng(1)
    entries = rng.standard_normal((2, NUM_ROWS, NUM_KV_HEADS, HEAD_DIM)).astype(np.float32)
    ids = np.full(NUM_ROWS, NO_BLOCK, np.int32)
    offset = rng.integers(0, BLOCK_SIZE, NUM_ROWS).astype(np.int32)
    for row, place in zip(order, places, strict=False):
        ids[row], offset[row] = place
    out = write(*on_device(pools), *entries, ids, offset, np.int32(layer * NUM_BLOCKS))
    for pool, rows in zip(pools, entries, strict=True):
        for row in np.flatnonzero(ids != NO_BLOCK):
            pool[layer * NUM_BLOCKS + ids[row], :, offset[row]] = rows[row]
    assert_same_bits(out, pools)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_entries_are_cast_to_the_type_of_the_pool(dtype):
    pools = random_pools(dtype)
    entries = np.full((2, NUM_ROWS, NUM_KV_HEADS, HEAD_DIM), 1 / 3, np.float32)
    ids = np.arange(1, NUM_ROWS + 1, dtype=np.int32)
    out = write(*on_device(pools), *entries, ids, np.zeros_like(ids), NUM_BLOCKS)
    for pool in pools:
        pool[NUM_BLOCKS + ids, :, 0] = 1 / 3
    assert_same_bits(out, pools)


@settings(max_examples=60, deadline=None)
@given(
    places=st.lists(
        st.tuples(st.permutations(range(1, NUM_BLOCKS - 1)), st.integers(0, NUM_TARGETS)),
        max_size=BLOCK_SIZE,
    )
)
def test_a_position_is_copied_to_its_targets_in_every_layer_and_nothing_else_changes(places):
    pools = random_pools()
    source = np.full(NUM_ROWS, NO_BLOCK, np.int32)
    offset = np.zeros(NUM_ROWS, np.int32)
    targets = np.full((NUM_ROWS, NUM_TARGETS), NO_BLOCK, np.int32)
    for row, (blocks, count) in enumerate(places):
        source[row], offset[row] = blocks[0], row
        targets[row, NUM_TARGETS - count :] = blocks[1 : count + 1]
    out = copy(*on_device(pools), source, offset, targets, num_layers=NUM_LAYERS)
    for pool in pools:
        for row, column in zip(*np.nonzero(targets != NO_BLOCK), strict=True):
            for first_block in range(0, NUM_LAYERS * NUM_BLOCKS, NUM_BLOCKS):
                pool[first_block + targets[row, column], :, offset[row]] = pool[
                    first_block + source[row], :, offset[row]
                ]
    assert_same_bits(out, pools)


def test_a_pool_of_broken_layers_is_refused():
    row = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match="18 blocks for 4 layers"):
        copy_positions(*random_pools(), row, row, row[:, None], num_layers=4)


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [("write", "float32"), ("write", "float16"), ("copy", "float16")],
)
def test_both_pools_are_updated_in_place(operation, dtype):
    def memory(num_blocks):
        struct = jax.ShapeDtypeStruct
        pool = struct((NUM_LAYERS * num_blocks, NUM_KV_HEADS, 16, 64), dtype)
        rows = struct((NUM_ROWS,), "int32")
        if operation == "write":
            entries = struct((NUM_ROWS, NUM_KV_HEADS, 64), "float32")
            lowered = write.lower(pool, pool, entries, entries, rows, rows, num_blocks)
        else:
            targets = struct((NUM_ROWS, NUM_TARGETS), "int32")
            lowered = copy.lower(pool, pool, rows, rows, targets, num_layers=NUM_LAYERS)
        analysis = lowered.compile().memory_analysis()
        assert analysis.alias_size_in_bytes == 2 * pool.size * pool.dtype.itemsize
        return analysis.temp_size_in_bytes

    assert memory(4096) == memory(64)
