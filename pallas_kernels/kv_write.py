"""Writes into the KV pools, in place where the caller donates them.

Writes are scatters of single positions with out-of-range rows dropped. A write that goes
nowhere has the block id `NO_BLOCK`, which lies past the end of every pool. It is never -1, which
wraps to the last block, and never the layer's N, which is block 0 of the next layer.

In place also needs an order: a layer's write must depend on the attention of the layer before, as
it does in a model. Independent of it, XLA keeps the old pool for that attention: a copy.

On XLA:CPU a bfloat16 pool is converted whole by every scatter and every gather (a scatter of 128
rows into 256 MiB takes 430 ms, 0.02 ms in float32): store float32 or float16 there.

No backend of kernels has a write of its own. On a GPU XLA fuses rotary positions into the two
scatters; one kernel for both pools cannot take them in, and costs a layer a launch more.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

NO_BLOCK = 2**31 - 1
"""Block id of rows and copies that write nowhere; past the end of every pool."""


def write_kv(
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    block_ids: Int[Array, " T"],
    offsets: Int[Array, " T"],
    first_block: int | Int[Array, ""],
) -> tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]:
    """Write each row's key and value at (block_ids[t], offsets[t]) of one layer.

    No two rows write to the same place.

    Args:
        k_pool, v_pool: the whole pools; DONATE them, they are written in place.
        k, v: this step's keys (after rotary positions) and values, cast to the pool's dtype.
        block_ids: ids in 0..N-1 of each row's block in its plane, or `NO_BLOCK`.
        offsets: position within the block, 0..S-1.
        first_block: id of the layer's block 0 in the pool, layer * N.

    Returns:
        Both pools.
    """
    ids = _pool_ids(block_ids, first_block)
    return _set_positions(k_pool, ids, offsets, k), _set_positions(v_pool, ids, offsets, v)


def copy_positions(
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    source_blocks: Int[Array, " R"],
    offsets: Int[Array, " R"],
    target_blocks: Int[Array, "R P"],
    *,
    num_layers: int,
) -> tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]:
    """Copy one position per row from a block to others, in every layer (last-exited KV).

     A token that exits at loop e leaves its key and value of plane e-1 in planes e..P-1 as well
    . The position has the same offset in every plane's block.

     Args:
         k_pool, v_pool: the whole pools, L * N blocks; DONATE them, they are written in place.
         source_blocks: id in 0..N-1 of the block that holds row r's position in the plane that it
             exited from. Of a row that copies nothing it may hold anything.
         offsets: position within each of the row's blocks, 0..S-1.
         target_blocks: ids of the blocks that receive the copy, `NO_BLOCK` where unused. Any
             number of columns up to P.
         num_layers: L; blocks per layer follow from the pool.

     Returns:
         Both pools.
    """
    if k_pool.shape[0] % num_layers:
        raise ValueError(
            f"expected a pool of whole layers, got {k_pool.shape[0]} blocks for {num_layers} layers"
        )
    first_blocks = jnp.arange(num_layers) * (k_pool.shape[0] // num_layers)
    source_ids = source_blocks + first_blocks[:, None]
    target_ids = _pool_ids(target_blocks, first_blocks[:, None, None])

    def copy(pool: Float[Array, "LN K S D"]) -> Float[Array, "LN K S D"]:
        entries = pool.at[source_ids, :, offsets].get(mode="clip")
        return _set_positions(pool, target_ids, offsets[:, None], entries[:, :, None])

    return copy(k_pool), copy(v_pool)


def _pool_ids(block_ids: Array, first_block: int | Array) -> Array:
    """Ids in the flat pool; `NO_BLOCK` stays what it is."""
    return jnp.where(block_ids == NO_BLOCK, NO_BLOCK, block_ids + first_block)


def _set_positions(
    pool: Float[Array, "LN K S D"], ids: Array, offsets: Array, entries: Array
) -> Float[Array, "LN K S D"]:
    return pool.at[ids, :, offsets].set(entries.astype(pool.dtype), mode="drop")
