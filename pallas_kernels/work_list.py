"""Which program of a prompt launch works for which item, from data; plain JAX on metadata."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from .rounding import divide_up


def list_prompt_tiles(
    prompt_rows: Int[Array, " I"], num_rows: int, *, queries_per_row: int = 1, tile_size: int
) -> tuple[Int[Array, " W"], Int[Array, " W"]]:
    """Tiles of every item's queries, item after item, the same for every layer of a step.

    Args:
        prompt_rows: of each item; at most T in all.
        num_rows: T. There is room for the most tiles that T rows can need.
        queries_per_row: how many of a tile's places a row takes.
        tile_size: places of a tile. No tile has queries of two items.

    Returns:
        See `list_work`.
    """
    # Every item may end with a tile that is not full.
    capacity = prompt_rows.shape[0] + num_rows * queries_per_row // tile_size
    return list_work(divide_up(prompt_rows * queries_per_row, tile_size), capacity)


def list_work(
    num_tiles: Int[Array, " I"], num_programs: int
) -> tuple[Int[Array, " W"], Int[Array, " W"]]:
    """Programs for items in order, one a tile; at least as many as there are tiles.

    Args:
        num_tiles: of each item.
        num_programs: W.

    Returns:
        The item of each program, -1 for programs without work, and the program of the first tile
        of its item.
    """
    num_items = num_tiles.shape[0]
    item = jnp.arange(num_items)
    # Sums over masks become one kernel; a scan and a search would be several.
    end = jnp.sum(jnp.where(item[None, :] <= item[:, None], num_tiles[None, :], 0), axis=1)
    is_past = jnp.arange(num_programs)[:, None] >= end[None, :]
    # Past the last item: the I - 1 before it, less I.
    step = jnp.where(item == num_items - 1, -num_items, 1)
    owner = jnp.sum(jnp.where(is_past, step, 0), axis=1, dtype=jnp.int32)
    first_program = jnp.sum(jnp.where(is_past, num_tiles, 0), axis=1, dtype=jnp.int32)
    return owner, first_program
