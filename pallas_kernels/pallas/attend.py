"""What decode and prompt programs share: a tile of queries attends to a paged sequence.

Everything here runs inside a Pallas kernel on values of power-of-two shapes, which is what Triton
takes. Axes: M queries of the tile, C positions of a key tile, Dp head_dim padded.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float, Int

from ..kernel_backend import Problem
from .tiles import PallasTiles

# Stands for the score of a key that is not seen, set after all scaling.
MASKED_SCORE = -1e30

LOG2_E = 1.4426950408889634


class PagedSequence(NamedTuple):
    """References to the pools, and the blocks and the head of one sequence in them."""

    keys: Any
    values: Any
    tables: Any
    table_row: Int[Array, ""]
    first_block: Int[Array, ""]
    kv_head: Int[Array, ""]
    num_keys: Int[Array, ""]
    """Keys that the tile's queries see at most; all of them are written."""


class Softmax(NamedTuple):
    """Online softmax in base 2 over the key tiles seen so far, float32."""

    maximum: Float[Array, " M"]
    total: Float[Array, " M"]
    weighted: Float[Array, "M Dp"]


def load_queries(
    problem: Problem[PallasTiles],
    q_ref: Any,
    row: Int[Array, " M"],
    head: Int[Array, " M"],
    is_query: Bool[Array, " M"],
) -> Float[Array, "M Dp"]:
    """Queries (row, head) as a tile; zeros where there is none."""
    dim = jnp.arange(problem.padded_dim)
    mask = is_query[:, None] & (dim < problem.head_dim)[None]
    return plt.load(q_ref.at[row[:, None], head[:, None], dim[None]], mask=mask, other=0.0).astype(
        problem.tile_dtype
    )


def attend(
    problem: Problem[PallasTiles],
    queries: Float[Array, "M Dp"],
    num_visible: Int[Array, " M"],
    sequence: PagedSequence,
    first_tile: Int[Array, ""] | int,
    end_tile: Int[Array, ""],
) -> Softmax:
    """Attention of each query over its first `num_visible` keys in tiles first_tile..end_tile-1."""
    num_queries = queries.shape[0]
    dim = jnp.arange(problem.padded_dim)[None]
    is_dim = dim < problem.head_dim

    def visit(tile: Int[Array, ""], state: Softmax) -> Softmax:
        position = tile * problem.tiles.key_tile + jnp.arange(problem.tiles.key_tile)
        is_written = position < sequence.num_keys
        block_index = lax.div(position, problem.block_size)
        # Entries past the sequence's end may hold anything, and so may unwritten slots.
        block = plt.load(
            sequence.tables.at[sequence.table_row, block_index], mask=is_written, other=0
        )
        index = (
            (block + sequence.first_block)[:, None],
            sequence.kv_head,
            lax.rem(position, problem.block_size)[:, None],
            dim,
        )
        mask = is_written[:, None] & is_dim
        keys = plt.load(sequence.keys.at[index], mask=mask, other=0.0)
        scores = _dot(queries, keys.astype(problem.tile_dtype), contract=1)
        is_visible = position[None] < num_visible[:, None]
        scores = jnp.where(is_visible, scores * (problem.scale * LOG2_E), MASKED_SCORE)
        maximum = jnp.maximum(state.maximum, jnp.max(scores, axis=1))
        weights = jnp.where(is_visible, jnp.exp2(scores - maximum[:, None]), 0.0)
        decay = jnp.exp2(state.maximum - maximum)
        values = plt.load(sequence.values.at[index], mask=mask, other=0.0)
        products = _dot(
            weights.astype(problem.tile_dtype), values.astype(problem.tile_dtype), contract=0
        )
        return Softmax(
            maximum,
            state.total * decay + jnp.sum(weights, axis=1),
            state.weighted * decay[:, None] + products,
        )

    empty = Softmax(
        jnp.full((num_queries,), MASKED_SCORE, jnp.float32),
        jnp.zeros((num_queries,), jnp.float32),
        jnp.zeros((num_queries, problem.padded_dim), jnp.float32),
    )
    return lax.fori_loop(first_tile, end_tile, visit, empty)


def _dot(left: Array, right: Array, *, contract: int) -> Float[Array, "M X"]:
    """Contract left's last axis with right's axis `contract`; float32 sums, and no TF32."""
    return lax.dot_general(
        left,
        right,
        (((1,), (contract,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
