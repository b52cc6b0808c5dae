"""Sizes rounded up to what a tile or a grid takes."""

import jax
from jax import lax

# The smallest inner dimension that Triton's dot takes.
MIN_TILE_DIM = 16


def padded_dim(head_dim: int) -> int:
    """head_dim as it stands in a tile: the next power of two, at least 16."""
    return max(MIN_TILE_DIM, next_power_of_two(head_dim))


def next_power_of_two(size: int) -> int:
    """The least power of two that is not below `size`, which is at least 1."""
    return 1 << (size - 1).bit_length()


def divide_up(count: jax.Array, size: int | jax.Array) -> jax.Array:
    """count / size, rounded up; neither is negative."""
    return lax.div(count + (size - 1), size)
