"""Backends "triton" and "triton_fused": hand-written Triton kernels, called through jax-triton.

Decode rows are split over their keys (flash-decoding), prompt rows go in tiles of 64 queries;
"triton" launches a kernel for each, "triton_fused" one for both. A last kernel combines the
splits and zeroes the rows of nobody, in place. Nothing here falls back to another backend: what
cannot be served is refused when the call is traced.

Triton and jax-triton are imported on the first call only.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..rounding import next_power_of_two, padded_dim
from ..work_list import list_work
from . import launch as jax_triton
from .launch import Launch
from .tiles import TritonTiles, tiles_for

DTYPES = ("float32", "float16", "bfloat16")

FINISH_HEAD_TILE = 8
"""Query heads that one program of the last kernel combines."""


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    decode_tables: Int[Array, "R B"],
    decode_lengths: Int[Array, " R"],
    prompt_tables: Int[Array, "I B"],
    prompt_position: Int[Array, " I"],
    prompt_first_row: Int[Array, " I"],
    prompt_rows: Int[Array, " I"],
    first_block: int | Int[Array, ""],
    scale: float,
    *,
    architecture: str | None,
    is_fused: bool = False,
) -> Float[Array, "T H D"]:
    """The contract of `attention.ragged_paged_attention`.

    Args:
        architecture: that of the GPU to compile for; None: the one that is traced for.
        is_fused: one launch for decode and prompt rows instead of one each.

    Raises:
        ImportError: jax-triton, Triton or JAX's CUDA plugin is missing.
        ValueError: no GPU, or a GPU, dtype or size without a kernel.
    """
    check_operands(q, k_pool)
    if architecture is None:
        architecture = jax_triton.gpu_architecture()
    tiles = tiles_for(architecture, q.dtype.name, q.shape[2])
    return attend(
        partial(jax_triton.launch, architecture=architecture),
        tiles,
        q,
        k_pool,
        v_pool,
        decode_tables,
        decode_lengths,
        prompt_tables,
        prompt_position,
        prompt_first_row,
        prompt_rows,
        first_block,
        scale,
        is_fused=is_fused,
    )


def check_operands(q: Float[Array, "T H D"], k_pool: Float[Array, "LN K S D"]) -> None:
    """Refuse what no kernel serves.

    Raises:
        ValueError: a dtype or a head_dim without a kernel.
    """
    # A half-precision pool under float32 products spills hundreds of bytes in every tile tried.
    if q.dtype != k_pool.dtype or q.dtype.name not in DTYPES:
        raise ValueError(
            f"attention backend triton takes queries and pools of one dtype, {', '.join(DTYPES)}; "
            f"got {q.dtype.name} queries and a {k_pool.dtype.name} pool; "
            "give both the same dtype, or choose backend xla"
        )
    if not 1 <= q.shape[2] <= 256:
        raise ValueError(
            f"attention backend triton takes head_dim 1 to 256, got {q.shape[2]}; "
            "choose backend xla"
        )


def attend(
    launch: Launch,
    tiles: TritonTiles,
    q: Float[Array, "T H D"],
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    decode_tables: Int[Array, "R B"],
    decode_lengths: Int[Array, " R"],
    prompt_tables: Int[Array, "I B"],
    prompt_position: Int[Array, " I"],
    prompt_first_row: Int[Array, " I"],
    prompt_rows: Int[Array, " I"],
    first_block: int | Int[Array, ""],
    scale: float,
    *,
    is_fused: bool,
) -> Float[Array, "T H D"]:
    """All launches of one call, whatever it is that launches.

    Args:
        launch: runs a kernel, see `jax_triton.launch`.
        tiles: configuration of the kernels.
        is_fused: one launch for decode and prompt rows instead of one each.
    """
    from . import kernels as kernels

    num_rows, num_heads, head_dim = q.shape
    num_decode, num_items = decode_lengths.shape[0], prompt_rows.shape[0]
    num_kv_heads = k_pool.shape[1]
    group = num_heads // num_kv_heads
    base = jnp.reshape(jnp.asarray(first_block, jnp.int32), (1,))
    constants = attention_constants(q, k_pool, prompt_tables.shape[1], scale)
    splits = {"NUM_SPLITS": tiles.num_splits, "MIN_SPLIT_KEYS": tiles.min_split_keys}
    out_shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
    statistic = jax.ShapeDtypeStruct((num_decode, tiles.num_splits, num_heads), jnp.float32)
    weighted = jax.ShapeDtypeStruct((*statistic.shape, head_dim), jnp.float32)
    query_tile = (tiles.fused if is_fused else tiles.prompt).queries
    # A tile for the whole of a large group would read its keys once, but in float32 it spills.
    num_decode_tiles = num_decode * -(-group // tiles.decode.queries)
    work_item, work_first = list_work(
        (prompt_rows * group + (query_tile - 1)) // query_tile,
        num_items + -(-num_rows * group // query_tile),
    )
    prompt_inputs = (prompt_tables, prompt_position, prompt_first_row, prompt_rows)

    if is_fused:
        key_tile = tiles.fused.keys
        num_work_tiles = work_item.shape[0]
        out, *parts = launch(
            kernels.fused_kernel,
            inputs=(
                *(q, k_pool, v_pool, work_item, work_first, *prompt_inputs),
                *(decode_tables, decode_lengths, base),
            ),
            outputs=(out_shape, statistic, statistic, weighted),
            grid=(num_work_tiles + num_decode_tiles * tiles.num_splits, num_kv_heads),
            constants={
                **constants,
                **splits,
                "NUM_WORK_TILES": num_work_tiles,
                "QUERY_TILE": query_tile,
                "DECODE_QUERY_TILE": tiles.decode.queries,
                "KEY_TILE": key_tile,
            },
            num_warps=tiles.fused.num_warps,
            num_stages=tiles.fused.num_stages,
        )
    else:
        key_tile = tiles.decode.keys
        parts = list(
            launch(
                kernels.decode_kernel,
                inputs=(q, k_pool, v_pool, decode_tables, decode_lengths, base),
                outputs=(statistic, statistic, weighted),
                grid=(num_decode_tiles, num_kv_heads, tiles.num_splits),
                constants={
                    **constants,
                    **splits,
                    "QUERY_TILE": tiles.decode.queries,
                    "KEY_TILE": key_tile,
                },
                num_warps=tiles.decode.num_warps,
                num_stages=tiles.decode.num_stages,
            )
        )
        (out,) = launch(
            kernels.prompt_kernel,
            inputs=(q, k_pool, v_pool, work_item, work_first, *prompt_inputs, base),
            outputs=(out_shape,),
            grid=(work_item.shape[0], num_kv_heads),
            constants={**constants, "QUERY_TILE": query_tile, "KEY_TILE": tiles.prompt.keys},
            num_warps=tiles.prompt.num_warps,
            num_stages=tiles.prompt.num_stages,
        )
    (out,) = launch(
        kernels.finish_kernel,
        inputs=(*parts, decode_lengths, prompt_first_row, prompt_rows),
        in_place=(out,),
        grid=(num_rows, -(-num_heads // FINISH_HEAD_TILE)),
        constants={
            **splits,
            "KEY_TILE": key_tile,
            "NUM_DECODE": num_decode,
            "NUM_ITEMS": num_items,
            "PADDED_ITEMS": next_power_of_two(num_items),
            "NUM_HEADS": num_heads,
            "HEAD_TILE": FINISH_HEAD_TILE,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_dim(head_dim),
        },
        num_warps=4,
        num_stages=1,
    )
    return out


def attention_constants(
    q: Float[Array, "T H D"], k_pool: Float[Array, "LN K S D"], table_width: int, scale: float
) -> dict[str, Any]:
    """Constants that the attention kernels have in common."""
    _, num_heads, head_dim = q.shape
    return {
        "SCALE_LOG2": float(scale) * math.log2(math.e),
        "TABLE_WIDTH": table_width,
        "GROUP": num_heads // k_pool.shape[1],
        "NUM_KV_HEADS": k_pool.shape[1],
        "BLOCK_SIZE": k_pool.shape[2],
        "HEAD_DIM": head_dim,
        "PADDED_DIM": padded_dim(head_dim),
    }
