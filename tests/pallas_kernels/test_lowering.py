"""The Pallas kernels lower to Triton for CUDA, for every tile configuration that is shipped.

The interpreter accepts what does not lower: tiles that are no power of two, concatenations,
dynamic grids. That the results are right is held by test_backends.py.
"""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from cuda_lowering import lower_for_cuda, pointer_offset_types, triton_kernels

from looped.pallas_kernels import ragged_paged_attention, write_kv
from looped.pallas_kernels.pallas import tiles
from looped.pallas_kernels.pallas.tiles import TILES

KERNELS = {"pallas": ["_decode_kernel", "_prompt_kernel"], "pallas_fused": ["_fused_kernel"]}
# Not every combination: each head_dim with each dtype, and the groups in turn.
GROUP_SIZES = {64: 1, 80: 6, 96: 4, 128: 8, 256: 1}
DTYPES = ["float32", "float16", "bfloat16"]

# Where the pools stand among the kernels' arguments.
ATTENTION_POOLS = (2, 3)
WRITTEN_POOLS = (7, 8)


def lower_attention(backend, architecture, dtype, head_dim, group_size, num_blocks=64):
    num_rows, num_sequences, num_items, num_kv_heads, block_size = 40, 8, 24, 2, 16
    array = jax.ShapeDtypeStruct
    rows = array((num_rows, group_size * num_kv_heads, head_dim), dtype)
    pool = array((num_blocks, num_kv_heads, block_size, head_dim), dtype)
    decodes, items = (
        (array((size, 12), "int32"), array((size,), "int32")) for size in (num_sequences, num_items)
    )
    op = functools.partial(
        ragged_paged_attention, scale=head_dim**-0.5, backend=backend, architecture=architecture
    )
    first_block = array((), "int32")
    return lower_for_cuda(op, rows, pool, pool, *decodes, *items, items[1], items[1], first_block)


def lower_write(dtype, num_blocks):
    array = jax.ShapeDtypeStruct
    entries, ids = array((4, 2, 128), dtype), array((4,), "int32")
    pool = array((num_blocks, 2, 16, 128), dtype)
    op = functools.partial(write_kv, backend="pallas")
    return lower_for_cuda(op, pool, pool, entries, entries, ids, ids, array((), "int32"))


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("architecture", TILES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", GROUP_SIZES)
@pytest.mark.long
def test_every_tile_configuration_lowers_for_cuda(backend, architecture, dtype, head_dim):
    lowered = lower_attention(backend, architecture, dtype, head_dim, GROUP_SIZES[head_dim])
    kernels = triton_kernels(lowered)
    assert sorted(kernels) == KERNELS[backend]
    for kernel in kernels.values():
        assert "scf.for" in kernel, "a loop that Triton can pipeline"
        assert_products(kernel, "f32" if dtype == "float32" else dtype.replace("float", "f"))


def test_no_tile_configuration_is_shipped_that_does_not_lower():
    """By the test before this one."""
    lowered = {
        tiles.tile_configuration(architecture, head_dim, jnp.dtype(dtype))
        for architecture in TILES
        for dtype in DTYPES
        for head_dim in GROUP_SIZES
    }
    assert lowered == {row for table in TILES.values() for row in table}


def assert_products(kernel, dtype):
    """Operands of the tile's dtype, float32 sums, and for float32 no TF32."""
    products = [line for line in kernel.splitlines() if "tt.dot" in line]
    assert products
    for line in products:
        # ieee is the attribute's default and is not printed.
        assert "inputPrecision" not in line
        assert re.search(rf"x{dtype}> \* tensor<\w+x{dtype}> -> tensor<\w+xf32>", line), line


def test_a_product_in_tf32_would_be_seen():
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plt

    def kernel(x_ref, out_ref):
        out_ref[...] = plt.dot(x_ref[...], x_ref[...])

    tile = jax.ShapeDtypeStruct((16, 16), "float32")
    call = pl.pallas_call(kernel, out_shape=tile, compiler_params=plt.CompilerParams())
    [text] = triton_kernels(lower_for_cuda(call, tile)).values()
    assert "inputPrecision = tf32" in text


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", KERNELS)
def test_offsets_into_a_pool_of_more_than_2_to_31_elements_have_64_bits(backend, dtype):
    num_blocks = 2**31 // (2 * 16 * 128) + 1
    lowered = lower_attention(backend, "sm_90", dtype, 128, 1, num_blocks)
    for kernel in triton_kernels(lowered).values():
        for argument in ATTENTION_POOLS:
            assert pointer_offset_types(kernel, argument) == {"i64"}
        # Widened before they are multiplied, not after.
        assert re.search(r"arith.muli .*xi64>", kernel)
    for kernel in triton_kernels(lower_write(dtype, num_blocks)).values():
        for argument in WRITTEN_POOLS:
            assert pointer_offset_types(kernel, argument) == {"i64"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_offsets_of_32_bits_are_used_only_where_they_reach_every_element(dtype):
    """Pallas widens by bytes, past 2^32: at 2^31 elements of two bytes 32 bits still suffice."""
    num_blocks = 2**31 // (2 * 16 * 128)
    [kernel] = triton_kernels(lower_write(dtype, num_blocks)).values()
    expected = {"i64"} if dtype == "float32" else {"i32"}
    assert pointer_offset_types(kernel, WRITTEN_POOLS[0]) == expected


def test_the_written_pools_are_aliased_to_the_outputs():
    lowered = lower_write("bfloat16", 64)
    assert "output_operand_alias" in lowered.as_text()
    assert sorted(triton_kernels(lowered)) == ["_write_kernel"]
