"""The Pallas kernels lower to Triton for CUDA, for every tile configuration that is shipped.

The interpreter accepts what does not lower: tiles that are no power of two, concatenations,
dynamic grids. That the results are right is held by test_backends.py.
"""

import functools
import re

import jax
import pytest
from cuda_lowering import lower_for_cuda, pointer_offset_types, triton_kernels

from looped.pallas_kernels import AttentionMetadata, ragged_paged_attention
from looped.pallas_kernels.pallas.tiles import TILES, tiles_for

KERNELS = ["_decode_kernel", "_prompt_kernel"]
# Each head_dim, each dtype and each size of a group of query heads; not every combination.
CASES = [
    ("float32", 64, 1),
    ("float32", 80, 6),
    ("float32", 256, 1),
    ("float16", 64, 1),
    ("float16", 96, 4),
    ("float16", 256, 1),
    ("bfloat16", 80, 6),
    ("bfloat16", 128, 8),
]

# Where the pools stand among the kernels' arguments.
POOLS = (2, 3)


def lower_attention(architecture, dtype, head_dim, group_size, num_blocks=64):
    num_kv_heads, block_size = 2, 16
    rows = jax.ShapeDtypeStruct((40, group_size * num_kv_heads, head_dim), dtype)
    pool = jax.ShapeDtypeStruct((num_blocks, num_kv_heads, block_size, head_dim), dtype)
    metadata = AttentionMetadata.abstract(num_decode=8, num_items=24, table_width=12)
    op = functools.partial(
        ragged_paged_attention, scale=head_dim**-0.5, backend="pallas", architecture=architecture
    )
    first_block = jax.ShapeDtypeStruct((), "int32")
    return triton_kernels(lower_for_cuda(op, rows, pool, pool, metadata, first_block))


@pytest.mark.parametrize("architecture", TILES)
@pytest.mark.parametrize(("dtype", "head_dim", "group_size"), CASES)
@pytest.mark.long
def test_every_tile_configuration_lowers_for_cuda(architecture, dtype, head_dim, group_size):
    kernels = lower_attention(architecture, dtype, head_dim, group_size)
    assert sorted(kernels) == KERNELS
    for kernel in kernels.values():
        assert "scf.for" in kernel, "a loop that Triton can pipeline"
        assert_products(kernel, dtype)


def test_no_tile_configuration_is_shipped_that_does_not_lower():
    """By the test before this one."""
    lowered = {
        tiles_for(architecture, dtype, head_dim)
        for architecture in TILES
        for dtype, head_dim, _ in CASES
    }
    assert lowered == {row for table in TILES.values() for row in table}


def assert_products(kernel, dtype):
    """Operands of the tile's dtype, float32 sums, and for float32 no TF32."""
    short = "f32" if dtype == "float32" else dtype.replace("float", "f")
    products = [line for line in kernel.splitlines() if "tt.dot" in line]
    assert products
    for line in products:
        # ieee is the attribute's default and is not printed.
        assert "inputPrecision" not in line
        assert re.search(rf"x{short}> \* tensor<\w+x{short}> -> tensor<\w+xf32>", line), line


def test_a_product_in_tf32_would_be_seen():
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plt

    def kernel(x_ref, out_ref):
        out_ref[...] = plt.dot(x_ref[...], x_ref[...])

    tile = jax.ShapeDtypeStruct((16, 16), "float32")
    call = pl.pallas_call(kernel, out_shape=tile, compiler_params=plt.CompilerParams())
    [text] = triton_kernels(lower_for_cuda(call, tile)).values()
    assert "inputPrecision = tf32" in text


BLOCKS_OF_2_TO_31 = 2**31 // (2 * 16 * 128)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_offsets_into_a_pool_of_more_than_2_to_31_elements_have_64_bits(dtype):
    """And, since they are lowered here, that the kernels are whole and their products exact."""
    kernels = lower_attention("sm_90", dtype, 128, 1, BLOCKS_OF_2_TO_31 + 1)
    assert sorted(kernels) == KERNELS
    for kernel in kernels.values():
        for argument in POOLS:
            assert pointer_offset_types(kernel, argument) == {"i64"}
        # Widened before they are multiplied, not after.
        assert re.search(r"arith.muli .*xi64>", kernel)
        assert "scf.for" in kernel, "a loop that Triton can pipeline"
        assert_products(kernel, dtype)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", "i64"), ("bfloat16", "i32")])
def test_offsets_of_32_bits_are_used_only_where_they_reach_every_element(dtype, expected):
    """Pallas widens by bytes, past 2^32: at 2^31 elements of two bytes 32 bits still suffice."""
    for kernel in lower_attention("sm_90", dtype, 128, 1, BLOCKS_OF_2_TO_31).values():
        for argument in POOLS:
            assert pointer_offset_types(kernel, argument) == {expected}
