"""Prompt rows of the Pallas backend: tiles of the rows of one prompt item, causal.

A tile folds rows and the query heads of one kv head into one axis, row by row. Which tile is
which item's is a work list made from data; the grid has room for the most tiles that any launch
can need, and programs past the list's end return at once.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Int

from ..attention_metadata import AttentionMetadata
from ..kernel_backend import Problem
from ..rounding import divide_up
from ..work_list import list_prompt_tiles
from .attend import PagedSequence, attend, load_queries
from .tiles import PallasTiles


class PromptTiles(NamedTuple):
    """The work list; in a kernel, references to it. X tiles, those past the last have no rows."""

    item: Int[Array, " X"]
    first_row: Int[Array, " X"]
    """Batch row of the tile's first row."""
    num_rows: Int[Array, " X"]
    """Rows of the tile, up to `tile_rows`; 0: unused."""
    position: Int[Array, " X"]
    """Position of the tile's first row."""


def tile_rows(problem: Problem[PallasTiles]) -> int:
    """Rows that fit a tile."""
    return problem.tiles.prompt_queries // problem.group_size


def list_tiles(problem: Problem[PallasTiles], metadata: AttentionMetadata) -> PromptTiles:
    """Cut every item into tiles. Plain JAX on metadata, the same for every layer of a step."""
    size = tile_rows(problem)
    rows = metadata.prompt_rows
    owner, first_tile = list_prompt_tiles(rows, problem.num_rows, tile_size=size)
    is_used = owner >= 0
    item = jnp.where(is_used, owner, 0)
    skipped = (jnp.arange(owner.shape[0]) - first_tile) * size
    return PromptTiles(
        item,
        metadata.prompt_first_row[item] + skipped,
        jnp.where(is_used, jnp.minimum(rows[item] - skipped, size), 0),
        metadata.prompt_position[item] + skipped,
    )


def run_program(
    problem: Problem[PallasTiles],
    program: Int[Array, ""],
    first_block: Int[Array, ""],
    q_ref: Any,
    pool_refs: tuple[Any, Any],
    tables_ref: Any,
    tiles: PromptTiles,
    out_ref: Any,
) -> None:
    """One tile for one kv head; `program` counts kv heads, then tiles."""
    tile = lax.div(program, problem.num_kv_heads)
    kv_head = lax.rem(program, problem.num_kv_heads)
    num_rows = tiles.num_rows[tile]

    @pl.when(num_rows > 0)
    def _() -> None:
        query = jnp.arange(problem.tiles.prompt_queries)
        row_of_tile = lax.div(query, problem.group_size)
        is_query = row_of_tile < num_rows
        row = tiles.first_row[tile] + row_of_tile
        head = kv_head * problem.group_size + lax.rem(query, problem.group_size)
        position = tiles.position[tile]
        num_keys = position + num_rows
        queries = load_queries(problem, q_ref, row, head, is_query)
        softmax = attend(
            problem,
            queries,
            jnp.where(is_query, position + row_of_tile + 1, 0),
            PagedSequence(*pool_refs, tables_ref, tiles.item[tile], first_block, kv_head, num_keys),
            0,
            divide_up(num_keys, problem.tiles.key_tile),
        )
        dim = jnp.arange(problem.padded_dim)[None]
        total = jnp.where(is_query, softmax.total, 1.0)
        plt.store(
            out_ref.at[row[:, None], head[:, None], dim],
            (softmax.weighted / total[:, None]).astype(out_ref.dtype),
            mask=is_query[:, None] & (dim < problem.head_dim),
        )
