"""Backend "pallas": Pallas kernels on the Triton lowering.

Two launches: split-KV flash decoding for decode rows, 64-query tiles for prompt rows. XLA joins the
splits and zeroes the rows of nobody.

On a CPU it runs in Pallas's interpreter: right, and far too slow for anything but tests. JAX
marks the Triton lowering of Pallas as deprecated; backend "triton" does not depend on it.

Pools may pass 2^31 elements. Pallas computes an operand's offsets in 64 bits where it is larger
than 2^32 bytes, which for types of 2 and 4 bytes is no later than 2^31 elements; kernels index
the pools by (block, head, slot, dim) and never flatten them. A test reads this in the IR.
"""

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from ..kernel_backend import KernelBackend, Operands, Problem
from . import decode, prompt
from .decode import Partials
from .launch import launch
from .prompt import PromptTiles
from .tiles import PallasTiles, tiles_for


@dataclass(frozen=True, kw_only=True)
class PallasBackend(KernelBackend[PallasTiles]):
    """Two launches; queries and pools of any two dtypes."""

    takes_two_dtypes: ClassVar[bool] = True

    def tiles_for(self, architecture: str, dtype: str, head_dim: int) -> PallasTiles:
        return tiles_for(architecture, dtype, head_dim)

    def attend(self, problem: Problem[PallasTiles], operands: Operands) -> Float[Array, "T H D"]:
        tiles = problem.tiles
        if problem.group_size > tiles.prompt_queries:
            raise ValueError(
                f"attention backend {self.name} takes at most {tiles.prompt_queries} query heads "
                f"per kv head, got {problem.group_size}; choose backend xla"
            )
        q, k_pool, v_pool, metadata, first_block = operands
        shared = (first_block, q, k_pool, v_pool)
        partials = launch(
            functools.partial(_decode_kernel, problem),
            (*shared, metadata.decode_tables, metadata.decode_lengths),
            decode.partial_shapes(problem),
            num_programs=decode.num_programs(problem),
            num_warps=tiles.decode_warps,
            num_stages=tiles.decode_stages,
        )
        prompt_tiles = prompt.list_tiles(problem, metadata)
        [out] = launch(
            functools.partial(_prompt_kernel, problem),
            (*shared, metadata.prompt_tables, *prompt_tiles),
            [jax.ShapeDtypeStruct(q.shape, q.dtype)],
            num_programs=prompt_tiles.item.shape[0] * problem.num_kv_heads,
            num_warps=tiles.prompt_warps,
            num_stages=tiles.prompt_stages,
        )
        decoded = decode.combine(problem, Partials(*partials), metadata.decode_lengths)
        is_prompt = metadata.is_prompt_row(problem.num_rows)[:, None, None]
        out = jnp.where(is_prompt, out, jnp.zeros((), out.dtype))
        is_decode = (metadata.decode_lengths > 0)[:, None, None]
        decoded = jnp.where(is_decode, decoded.astype(out.dtype), out[: problem.num_decode])
        return jnp.concatenate([decoded, out[problem.num_decode :]])


def _decode_kernel(
    problem: Problem[PallasTiles],
    first_block_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    tables_ref: Any,
    lengths_ref: Any,
    *partial_refs: Any,
) -> None:
    decode.run_program(
        problem,
        pl.program_id(0),
        first_block_ref[0],
        q_ref,
        (k_ref, v_ref),
        tables_ref,
        lengths_ref,
        Partials(*partial_refs),
    )


def _prompt_kernel(
    problem: Problem[PallasTiles],
    first_block_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    tables_ref: Any,
    *tile_and_out_refs: Any,
) -> None:
    *tile_refs, out_ref = tile_and_out_refs
    prompt.run_program(
        problem,
        pl.program_id(0),
        first_block_ref[0],
        q_ref,
        (k_ref, v_ref),
        tables_ref,
        PromptTiles(*tile_refs),
        out_ref,
    )
