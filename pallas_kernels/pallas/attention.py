"""Backends "pallas" and "pallas_fused": Pallas kernels on the Triton lowering.

"pallas" makes two launches: split-KV flash decoding for decode rows, 64-query tiles for prompt
rows. "pallas_fused" puts the same programs behind one grid, in one launch with the prompt
launch's warps and stages: fewer launches, but every program has the registers of the larger one.
Which of them is faster is for a GPU to say.

On a CPU both run in Pallas's interpreter: right, and far too slow for anything but tests. JAX
marks the Triton lowering of Pallas as deprecated; backend "triton" does not depend on it.

Pools may pass 2^31 elements. Pallas computes an operand's offsets in 64 bits where it is larger
than 2^32 bytes, which for types of 2 and 4 bytes is no later than 2^31 elements; kernels index
the pools by (block, head, slot, dim) and never flatten them. A test reads this in the IR.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int

from ..architectures import architecture_here
from . import decode as pallas_decode
from . import prompt as pallas_prompt
from .attend import Problem
from .decode import Partials
from .launch import launch
from .prompt import PromptTiles
from .tiles import tile_configuration

DTYPES = ("float32", "float16", "bfloat16")


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
        architecture: one of `ARCHITECTURES`; None: the one that is traced for.
        is_fused: one launch instead of two.

    Raises:
        ValueError: a dtype, head_dim, group of query heads or architecture it does not serve.
    """
    problem = _problem(q, k_pool, scale, architecture)
    num_rows, num_sequences = q.shape[0], decode_lengths.shape[0]
    max_tiles = pallas_prompt.max_tiles(problem, num_rows, prompt_rows.shape[0])
    shared = (jnp.asarray(first_block, jnp.int32).reshape(1), q, k_pool, v_pool)
    decode_operands = (decode_tables, decode_lengths)
    prompt_operands = (
        prompt_tables,
        *pallas_prompt.list_tiles(
            problem, max_tiles, prompt_position, prompt_first_row, prompt_rows
        ),
    )
    partial_shapes = pallas_decode.partial_shapes(problem, num_sequences)
    out_shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
    num_decode = pallas_decode.num_programs(problem, num_sequences)
    num_prompt = pallas_prompt.num_programs(problem, num_rows, prompt_rows.shape[0])
    tiles = problem.tiles
    if is_fused:
        *partials, out = launch(
            functools.partial(_fused_kernel, problem, num_decode),
            (*shared, *decode_operands, *prompt_operands),
            [*partial_shapes, out_shape],
            num_programs=num_decode + num_prompt,
            num_warps=tiles.prompt_warps,
            num_stages=tiles.prompt_stages,
        )
    else:
        partials = launch(
            functools.partial(_decode_kernel, problem),
            (*shared, *decode_operands),
            partial_shapes,
            num_programs=num_decode,
            num_warps=tiles.decode_warps,
            num_stages=tiles.decode_stages,
        )
        [out] = launch(
            functools.partial(_prompt_kernel, problem),
            (*shared, *prompt_operands),
            [out_shape],
            num_programs=num_prompt,
            num_warps=tiles.prompt_warps,
            num_stages=tiles.prompt_stages,
        )
    decoded = pallas_decode.combine(problem, Partials(*partials), decode_lengths)
    is_prompt = _owned_rows(num_rows, prompt_first_row, prompt_rows)
    out = jnp.where(is_prompt[:, None, None], out, jnp.zeros((), out.dtype))
    is_decode = (decode_lengths > 0)[:, None, None]
    decoded = jnp.where(is_decode, decoded.astype(out.dtype), out[:num_sequences])
    return jnp.concatenate([decoded, out[num_sequences:]])


ragged_paged_attention_fused = functools.partial(ragged_paged_attention, is_fused=True)


def _decode_kernel(
    problem: Problem,
    first_block_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    tables_ref: Any,
    lengths_ref: Any,
    *partial_refs: Any,
) -> None:
    pallas_decode.run_program(
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
    problem: Problem,
    first_block_ref: Any,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    tables_ref: Any,
    *tile_and_out_refs: Any,
) -> None:
    *tile_refs, out_ref = tile_and_out_refs
    pallas_prompt.run_program(
        problem,
        pl.program_id(0),
        first_block_ref[0],
        q_ref,
        (k_ref, v_ref),
        tables_ref,
        PromptTiles(*tile_refs),
        out_ref,
    )


def _fused_kernel(problem: Problem, num_decode: int, *refs: Any) -> None:
    """Decode programs first, then prompt programs."""
    first_block_ref, q_ref, *pool_refs = refs[:4]
    decode_tables_ref, lengths_ref, prompt_tables_ref, *tile_refs = refs[4:11]
    *partial_refs, out_ref = refs[11:]
    shared = (first_block_ref[0], q_ref, tuple(pool_refs))
    program = pl.program_id(0)

    @pl.when(program < num_decode)
    def _() -> None:
        pallas_decode.run_program(
            problem, program, *shared, decode_tables_ref, lengths_ref, Partials(*partial_refs)
        )

    @pl.when(program >= num_decode)
    def _() -> None:
        pallas_prompt.run_program(
            problem,
            program - num_decode,
            *shared,
            prompt_tables_ref,
            PromptTiles(*tile_refs),
            out_ref,
        )


def _problem(q: jax.Array, k_pool: jax.Array, scale: float, architecture: str | None) -> Problem:
    """Check what the kernels serve, and gather what they are compiled for."""
    for name, array in (("q", q), ("the pools", k_pool)):
        if array.dtype.name not in DTYPES:
            raise ValueError(
                f"attention backend pallas: expected {name} of {', '.join(DTYPES)}, "
                f"got {array.dtype}; choose the backend xla for it"
            )
    # One dtype for a tile's products: what both sides have, or float32 where they differ.
    tile_dtype = q.dtype if q.dtype == k_pool.dtype else jnp.dtype(jnp.float32)
    _, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_pool.shape
    problem = Problem(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        scale=scale,
        tile_dtype=tile_dtype,
        tiles=tile_configuration(architecture or architecture_here(), head_dim, tile_dtype),
    )
    if problem.group_size > problem.tiles.prompt_queries:
        raise ValueError(
            f"attention backend pallas: expected at most {problem.tiles.prompt_queries} query "
            f"heads per kv head, got {problem.group_size}; choose the backend xla for it"
        )
    return problem


def _owned_rows(
    num_rows: int, first_row: Int[Array, " I"], rows: Int[Array, " I"]
) -> Bool[Array, " T"]:
    """Rows that belong to a prompt item."""
    row = jnp.arange(num_rows)[:, None]
    return jnp.any((row >= first_row) & (row < first_row + rows), axis=1)
