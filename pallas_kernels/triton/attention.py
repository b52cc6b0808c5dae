"""Backends "triton" and "triton_fused": hand-written Triton kernels, called through jax-triton.

Decode rows are split over their keys (flash-decoding), prompt rows go in tiles of 64 queries;
"triton" launches a kernel for each, "triton_fused" one for both. A last kernel combines the
splits and zeroes the rows of nobody, in place. Nothing here falls back to another backend: what
cannot be served is refused when the call is traced.

Triton and jax-triton are imported on the first call only.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..kernel_backend import KernelBackend, Operands, Problem
from ..rounding import next_power_of_two
from ..work_list import list_prompt_tiles
from .launch import Launch, gpu_architecture, launch
from .tiles import TritonTiles, tiles_for

FINISH_HEAD_TILE = 8
"""Query heads that one program of the last kernel combines."""


@dataclass(frozen=True, kw_only=True)
class TritonBackend(KernelBackend[TritonTiles]):
    """Queries and pools of one dtype, on a GPU alone."""

    is_fused: bool
    """One launch for decode and prompt rows instead of one each."""
    launch: Launch = launch
    """What runs a kernel: jax-triton, or what records or interprets in its place."""

    # A half-precision pool under float32 products spills hundreds of bytes in every tile tried.
    takes_two_dtypes: ClassVar[bool] = False

    def architecture_here(self) -> str:
        return gpu_architecture()

    def tiles_for(self, architecture: str, dtype: str, head_dim: int) -> TritonTiles:
        return tiles_for(architecture, dtype, head_dim)

    def attend(self, problem: Problem[TritonTiles], operands: Operands) -> Float[Array, "T H D"]:
        run = self._launch_one if self.is_fused else self._launch_each
        out, *partials = run(problem, operands)
        return self._finish(problem, operands, out, partials)

    def _launch_one(self, problem: Problem[TritonTiles], operands: Operands) -> tuple[Array, ...]:
        """Output of prompt rows, and the splits of decode rows: maximum, total and weighted."""
        from . import kernels as kernels

        q, k_pool, v_pool, metadata, first_block = operands
        tiles = problem.tiles
        work = _list_work(problem, operands, tiles.fused.queries)
        num_work_tiles = work[0].shape[0]
        return self.launch(
            kernels.fused_kernel,
            inputs=(
                *(q, k_pool, v_pool, *work, *_prompt_inputs(operands)),
                *(metadata.decode_tables, metadata.decode_lengths, first_block),
            ),
            outputs=(jax.ShapeDtypeStruct(q.shape, q.dtype), *_partial_shapes(problem)),
            grid=(
                num_work_tiles + _num_decode_tiles(problem) * tiles.num_splits,
                problem.num_kv_heads,
            ),
            constants={
                **_attention_constants(problem),
                **_split_constants(problem),
                "NUM_WORK_TILES": num_work_tiles,
                "QUERY_TILE": tiles.fused.queries,
                "DECODE_QUERY_TILE": tiles.decode.queries,
                "KEY_TILE": tiles.fused.keys,
            },
            num_warps=tiles.fused.num_warps,
            num_stages=tiles.fused.num_stages,
            architecture=problem.architecture,
        )

    def _launch_each(self, problem: Problem[TritonTiles], operands: Operands) -> tuple[Array, ...]:
        """The same by two kernels."""
        from . import kernels as kernels

        q, k_pool, v_pool, metadata, first_block = operands
        tiles = problem.tiles
        partials = self.launch(
            kernels.decode_kernel,
            inputs=(
                *(q, k_pool, v_pool),
                *(metadata.decode_tables, metadata.decode_lengths, first_block),
            ),
            outputs=_partial_shapes(problem),
            grid=(_num_decode_tiles(problem), problem.num_kv_heads, tiles.num_splits),
            constants={
                **_attention_constants(problem),
                **_split_constants(problem),
                "QUERY_TILE": tiles.decode.queries,
                "KEY_TILE": tiles.decode.keys,
            },
            num_warps=tiles.decode.num_warps,
            num_stages=tiles.decode.num_stages,
            architecture=problem.architecture,
        )
        work = _list_work(problem, operands, tiles.prompt.queries)
        (out,) = self.launch(
            kernels.prompt_kernel,
            inputs=(q, k_pool, v_pool, *work, *_prompt_inputs(operands), first_block),
            outputs=(jax.ShapeDtypeStruct(q.shape, q.dtype),),
            grid=(work[0].shape[0], problem.num_kv_heads),
            constants={
                **_attention_constants(problem),
                "QUERY_TILE": tiles.prompt.queries,
                "KEY_TILE": tiles.prompt.keys,
            },
            num_warps=tiles.prompt.num_warps,
            num_stages=tiles.prompt.num_stages,
            architecture=problem.architecture,
        )
        return (out, *partials)

    def _finish(
        self,
        problem: Problem[TritonTiles],
        operands: Operands,
        out: Float[Array, "T H D"],
        partials: list[Array],
    ) -> Float[Array, "T H D"]:
        """Decode rows from their splits and zeros in rows of nobody, in place."""
        from . import kernels as kernels

        metadata, tiles = operands.metadata, problem.tiles
        (out,) = self.launch(
            kernels.finish_kernel,
            inputs=(
                *(*partials, metadata.decode_lengths),
                *(metadata.prompt_first_row, metadata.prompt_rows),
            ),
            in_place=(out,),
            grid=(problem.num_rows, -(-problem.num_heads // FINISH_HEAD_TILE)),
            constants={
                **_split_constants(problem),
                "KEY_TILE": (tiles.fused if self.is_fused else tiles.decode).keys,
                "NUM_DECODE": problem.num_decode,
                "NUM_ITEMS": problem.num_items,
                "PADDED_ITEMS": next_power_of_two(problem.num_items),
                "NUM_HEADS": problem.num_heads,
                "HEAD_TILE": FINISH_HEAD_TILE,
                "HEAD_DIM": problem.head_dim,
                "PADDED_DIM": problem.padded_dim,
            },
            num_warps=4,
            num_stages=1,
            architecture=problem.architecture,
        )
        return out


def _list_work(
    problem: Problem[TritonTiles], operands: Operands, query_tile: int
) -> tuple[Array, Array]:
    """The item of each work tile, and its item's first one."""
    return list_prompt_tiles(
        operands.metadata.prompt_rows,
        problem.num_rows,
        queries_per_row=problem.group_size,
        tile_size=query_tile,
    )


def _prompt_inputs(operands: Operands) -> tuple[Array, ...]:
    metadata = operands.metadata
    return (
        metadata.prompt_tables,
        metadata.prompt_position,
        metadata.prompt_first_row,
        metadata.prompt_rows,
    )


def _num_decode_tiles(problem: Problem[TritonTiles]) -> int:
    # A tile for the whole of a large group would read its keys once, but in float32 it spills.
    return problem.num_decode * -(-problem.group_size // problem.tiles.decode.queries)


def _partial_shapes(problem: Problem[TritonTiles]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Of the splits' maximum, total and weighted values."""
    shape = (problem.num_decode, problem.tiles.num_splits, problem.num_heads)
    statistic = jax.ShapeDtypeStruct(shape, jnp.float32)
    return statistic, statistic, jax.ShapeDtypeStruct((*shape, problem.head_dim), jnp.float32)


def _attention_constants(problem: Problem[TritonTiles]) -> dict[str, Any]:
    """Constants that the attention kernels have in common."""
    return {
        "SCALE_LOG2": float(problem.scale) * math.log2(math.e),
        "TABLE_WIDTH": problem.table_width,
        "GROUP": problem.group_size,
        "NUM_KV_HEADS": problem.num_kv_heads,
        "BLOCK_SIZE": problem.block_size,
        "HEAD_DIM": problem.head_dim,
        "PADDED_DIM": problem.padded_dim,
    }


def _split_constants(problem: Problem[TritonTiles]) -> dict[str, Any]:
    tiles = problem.tiles
    return {"NUM_SPLITS": tiles.num_splits, "MIN_SPLIT_KEYS": tiles.min_split_keys}
