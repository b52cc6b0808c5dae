"""Decode rows of the Pallas backend: split-KV flash decoding.

One program per (row, kv head, split) attends with the kv head's query heads over one part of the
row's keys and writes a partial softmax; `combine` joins the parts. The number of splits is fixed
when compiled, their range comes from the row's length.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Float, Int

from ..kernel_backend import Problem
from ..rounding import divide_up, next_power_of_two
from .attend import MASKED_SCORE, PagedSequence, attend, load_queries
from .tiles import PallasTiles


class Partials(NamedTuple):
    """One softmax per row, head and split; in a kernel, references to them.

    Parts that hold no key are never written.
    """

    maximum: Float[Array, "R H splits"]
    total: Float[Array, "R H splits"]
    weighted: Float[Array, "R H splits D"]


def partial_shapes(problem: Problem[PallasTiles]) -> list[jax.ShapeDtypeStruct]:
    shape = (problem.num_decode, problem.num_heads, problem.tiles.num_splits)
    return [
        jax.ShapeDtypeStruct(size, jnp.float32)
        for size in (shape, shape, (*shape, problem.head_dim))
    ]


def num_programs(problem: Problem[PallasTiles]) -> int:
    return problem.num_decode * problem.num_kv_heads * problem.tiles.num_splits


def run_program(
    problem: Problem[PallasTiles],
    program: Int[Array, ""],
    first_block: Int[Array, ""],
    q_ref: Any,
    pool_refs: tuple[Any, Any],
    tables_ref: Any,
    lengths_ref: Any,
    partial_refs: Any,
) -> None:
    """One program's part of one decode row; `program` counts splits, then kv heads, then rows."""
    row, rest = _divmod(program, problem.num_kv_heads * problem.tiles.num_splits)
    kv_head, split = _divmod(rest, problem.tiles.num_splits)
    length = lengths_ref[row]
    split_tiles = _split_tiles(problem, length)
    first_tile = split * split_tiles

    @pl.when(first_tile * problem.tiles.key_tile < length)
    def _() -> None:
        query = jnp.arange(max(problem.tiles.decode_queries, next_power_of_two(problem.group_size)))
        is_query = query < problem.group_size
        head = kv_head * problem.group_size + query
        queries = load_queries(problem, q_ref, jnp.full_like(query, row), head, is_query)
        num_tiles = divide_up(length, problem.tiles.key_tile)
        softmax = attend(
            problem,
            queries,
            jnp.where(is_query, length, 0),
            PagedSequence(*pool_refs, tables_ref, row, first_block, kv_head, length),
            first_tile,
            jnp.minimum(first_tile + split_tiles, num_tiles),
        )
        plt.store(partial_refs.maximum.at[row, head, split], softmax.maximum, mask=is_query)
        plt.store(partial_refs.total.at[row, head, split], softmax.total, mask=is_query)
        dim = jnp.arange(problem.padded_dim)[None]
        plt.store(
            partial_refs.weighted.at[row, head[:, None], split, dim],
            softmax.weighted,
            mask=is_query[:, None] & (dim < problem.head_dim),
        )


def combine(
    problem: Problem[PallasTiles], partials: Partials, lengths: Int[Array, " R"]
) -> Float[Array, "R H D"]:
    """The splits' softmaxes as one; zeros for a row of no keys. Plain JAX, float32."""
    split = jnp.arange(problem.tiles.num_splits)
    split_keys = _split_tiles(problem, lengths) * problem.tiles.key_tile
    is_used = (split * split_keys[:, None] < lengths[:, None])[:, None]
    maximum = jnp.where(is_used, partials.maximum, MASKED_SCORE)
    weight = jnp.where(is_used, jnp.exp2(maximum - jnp.max(maximum, axis=-1, keepdims=True)), 0.0)
    total = jnp.sum(weight * jnp.where(is_used, partials.total, 0.0), axis=-1)
    parts = jnp.where(is_used[..., None], partials.weighted, 0.0)
    weighted = jnp.sum(weight[..., None] * parts, axis=-2)
    return weighted / jnp.where(total > 0, total, 1.0)[..., None]


def _split_tiles(
    problem: Problem[PallasTiles], length: Int[Array, "*shape"]
) -> Int[Array, "*shape"]:
    """Key tiles per split of a row with `length` keys."""
    num_tiles = divide_up(length, problem.tiles.key_tile)
    return divide_up(num_tiles, problem.tiles.num_splits)


def _divmod(count: Int[Array, ""], size: int) -> tuple[Int[Array, ""], Int[Array, ""]]:
    return lax.div(count, size), lax.rem(count, size)
