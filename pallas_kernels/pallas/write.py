"""Backend "pallas" of `write_kv`: keys and values of all rows into both pools in one launch.

One program per row writes every kv head of the row. The pools are aliased to the outputs, in
place under donation. Rotary positions stay outside, and that costs: XLA fuses them into its own
two scatters, but not into this launch, so that compiled ahead for a GPU a layer has one launch
more this way. Which of them is faster no GPU has said.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jaxtyping import Array, Bool, Float, Int

from ..rounding import next_power_of_two
from .launch import launch

NUM_WARPS = 4
NUM_STAGES = 1


def write_kv(
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    block_ids: Int[Array, " T"],
    offsets: Int[Array, " T"],
    first_block: int | Int[Array, ""],
    *,
    architecture: str | None,
) -> tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]:
    """The contract of `kv_write.write_kv`; the same launch on every architecture."""
    pools = [jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in (k_pool, v_pool)]
    first_block = jnp.asarray(first_block, jnp.int32).reshape(1)
    k_pool, v_pool = launch(
        functools.partial(_write_kernel, k.shape[1:], k_pool.shape[0]),
        (first_block, block_ids, offsets, k, v, k_pool, v_pool),
        pools,
        num_programs=k.shape[0],
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
        aliases={5: 0, 6: 1},
    )
    return k_pool, v_pool


def _write_kernel(
    entry_shape: tuple[int, ...],
    num_pool_blocks: int,
    first_block_ref: Any,
    block_ids_ref: Any,
    offsets_ref: Any,
    k_ref: Any,
    v_ref: Any,
    _k_pool_ref: Any,
    _v_pool_ref: Any,
    *pool_refs: Any,
) -> None:
    row = pl.program_id(0)
    first_block, block = first_block_ref[0], block_ids_ref[row]

    @pl.when(is_in_pool(block, first_block, num_pool_blocks))
    def _() -> None:
        num_kv_heads, head_dim = entry_shape
        head = jnp.arange(next_power_of_two(num_kv_heads))[:, None]
        dim = jnp.arange(next_power_of_two(head_dim))[None]
        mask = (head < num_kv_heads) & (dim < head_dim)
        for entry_ref, pool_ref in zip((k_ref, v_ref), pool_refs, strict=True):
            entry = plt.load(entry_ref.at[row, head, dim], mask=mask, other=0.0)
            place = pool_ref.at[block + first_block, head, offsets_ref[row], dim]
            plt.store(place, entry.astype(pool_ref.dtype), mask=mask)


def is_in_pool(
    block: Int[Array, ""], first_block: Int[Array, ""], num_pool_blocks: int
) -> Bool[Array, ""]:
    """Whether block + first_block lies before the pool's end; of `NO_BLOCK` that sum would wrap."""
    return block < num_pool_blocks - first_block
