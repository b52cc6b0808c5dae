"""Backend "xla": the reference for the kernels, and the fast path on CPU.

Work is cut into items of one shape each: a group of decode sequences with one row each, or a tile
of rows of one prompt item. How many there are is data, so a batch without decode rows, or without
prompt rows, pays nothing for them. Both kinds run `_attend`: key tiles of a fixed number of
positions, from position 0 upwards to the longest of the item, with an online softmax.

The softmax is float32, and so are all products but those of bfloat16 prompt rows. (Decode rows wait
for memory anyway.) These multiply in bfloat16 and add in float32, which XLA:CPU does twice as fast:
keys and values of such a model are bfloat16 numbers whatever pool they lie in, and only the
softmax's weights are rounded, as in every fused kernel.

What a row's bits depend on: the number of rows T, R and I, and the row's own query, keys and
values. Not on other rows: every product is a batch over sequences, and a tile in which a row sees
no key leaves its state as it was. On XLA:CPU not on chunk boundaries either, because a row of a
product does not depend on its place in the tile (measured; the tests hold it).

Axes beside the usual letters: A sequences of a work item, Q queries of one kv head (rows times
H / K), C positions of a key tile.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .attention_metadata import AttentionMetadata
from .rounding import divide_up

# Measured in experiments/xla_attention.py and cpu_path.py. Larger tiles fall out of a core's level
# 2 cache and are wasted on short contexts and items; smaller ones pay more for the loop.
DECODE_KEY_TILE_SIZE = 64  # positions, rounded to whole blocks
DECODE_GROUP_SIZE = 4  # sequences
PROMPT_KEY_TILE_SIZE = 128  # positions, rounded to whole blocks
QUERY_TILE_SIZE = 128  # rows times query heads per kv head

# Stands for the score of a key that is not seen, set after all scaling: minus infinity would
# give NaN as the difference of two, and a sentinel that is scaled later has done so too.
MASKED_SCORE = -1e30


class Pools(NamedTuple):
    """The whole cache and where this layer's blocks begin in it."""

    keys: Float[Array, "LN K S D"]
    values: Float[Array, "LN K S D"]
    first_block: int | Int[Array, ""]


class SoftmaxState(NamedTuple):
    """Online softmax over the tiles seen so far."""

    maximum: Float[Array, "A K Q"]
    total: Float[Array, "A K Q"]
    weighted: Float[Array, "A K Q D"]


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    metadata: AttentionMetadata,
    first_block: int | Int[Array, ""],
    scale: float,
    *,
    architecture: str | None = None,
) -> Float[Array, "T H D"]:
    """The contract of `attention.ragged_paged_attention`; the same for every architecture."""
    del architecture
    pools = Pools(k_pool, v_pool, first_block)
    out = jnp.zeros_like(q)
    out = _fill_decode_rows(out, q, pools, metadata, scale)
    return _fill_prompt_rows(out, q, pools, metadata, scale)


def _fill_decode_rows(
    out: Float[Array, "T H D"],
    q: Float[Array, "T H D"],
    pools: Pools,
    metadata: AttentionMetadata,
    scale: float,
) -> Float[Array, "T H D"]:
    num_rows, num_heads, head_dim = q.shape
    tables, lengths = metadata.decode_tables, metadata.decode_lengths
    num_sequences = lengths.shape[0]
    num_kv_heads = pools.keys.shape[1]
    group_size = min(DECODE_GROUP_SIZE, num_sequences)
    group_of_row = jnp.arange(num_sequences) // group_size

    def fill_group(index: Int[Array, ""], out: Float[Array, "T H D"]) -> Float[Array, "T H D"]:
        row = index * group_size + jnp.arange(group_size)
        length = jnp.where(row < num_sequences, _take(lengths, row), 0)
        queries = _take(q, row).astype(jnp.float32)
        queries = queries.reshape(group_size, num_kv_heads, -1, head_dim)
        num_visible = jnp.broadcast_to(length[:, None], (group_size, queries.shape[2]))
        attended = _attend(
            queries, pools, _take(tables, row), num_visible, scale, DECODE_KEY_TILE_SIZE
        )
        attended = attended.reshape(group_size, num_heads, head_dim).astype(out.dtype)
        return out.at[jnp.where(length > 0, row, num_rows)].set(attended, mode="drop")

    num_groups = jnp.max(jnp.where(lengths > 0, group_of_row + 1, 0))
    return lax.fori_loop(0, num_groups, fill_group, out)


def _fill_prompt_rows(
    out: Float[Array, "T H D"],
    q: Float[Array, "T H D"],
    pools: Pools,
    metadata: AttentionMetadata,
    scale: float,
) -> Float[Array, "T H D"]:
    num_rows, num_heads, head_dim = q.shape
    rows, first_row = metadata.prompt_rows, metadata.prompt_first_row
    num_kv_heads = pools.keys.shape[1]
    heads_per_kv_head = num_heads // num_kv_heads
    # Float16 has too small a range to round keys of another type to.
    product_dtype = q.dtype if q.dtype == jnp.bfloat16 else jnp.float32
    tile_rows = min(num_rows, max(1, QUERY_TILE_SIZE // heads_per_kv_head))
    num_tiles = divide_up(rows, tile_rows)
    end_tile = jnp.cumsum(num_tiles)

    def fill_tile(index: Int[Array, ""], out: Float[Array, "T H D"]) -> Float[Array, "T H D"]:
        item = jnp.sum(index >= end_tile)
        tile_of_item = index - (end_tile[item] - num_tiles[item])
        row_of_item = tile_of_item * tile_rows + jnp.arange(tile_rows)
        is_row = row_of_item < rows[item]
        row = jnp.where(is_row, first_row[item] + row_of_item, num_rows)
        num_visible = jnp.where(is_row, metadata.prompt_position[item] + row_of_item + 1, 0)
        queries = _take(q, row).astype(product_dtype)
        queries = queries.reshape(tile_rows, num_kv_heads, heads_per_kv_head, head_dim)
        queries = queries.swapaxes(0, 1).reshape(1, num_kv_heads, -1, head_dim)
        num_visible = jnp.repeat(num_visible, heads_per_kv_head)
        attended = _attend(
            queries,
            pools,
            metadata.prompt_tables[item][None],
            num_visible[None],
            scale,
            PROMPT_KEY_TILE_SIZE,
        )
        attended = attended.reshape(num_kv_heads, tile_rows, heads_per_kv_head, head_dim)
        attended = attended.swapaxes(0, 1).reshape(tile_rows, num_heads, head_dim)
        return out.at[row].set(attended.astype(out.dtype), mode="drop")

    return lax.fori_loop(0, end_tile[-1], fill_tile, out)


def _attend(
    queries: Float[Array, "A K Q D"],
    pools: Pools,
    tables: Int[Array, "A B"],
    num_visible: Int[Array, "A Q"],
    scale: float,
    key_tile_size: int,
) -> Float[Array, "A K Q D"]:
    """Attention of each query over its sequence's first `num_visible` keys, in float32.

    Products are made in the queries' type.
    """
    block_size = pools.keys.shape[2]
    tile_blocks = max(1, key_tile_size // block_size)
    tile_size = tile_blocks * block_size
    num_keys = jnp.max(num_visible, axis=1)

    def visit(tile: Int[Array, ""], state: SoftmaxState) -> SoftmaxState:
        block = tile * tile_blocks + jnp.arange(tile_blocks)
        is_used = block * block_size < num_keys[:, None]
        ids = jnp.where(is_used, jnp.take(tables, block, axis=1, mode="clip"), 0)
        ids = ids + pools.first_block
        position = tile * tile_size + jnp.arange(tile_size)
        # An unwritten value may be NaN, and a weight of zero does not take that away.
        is_written = (position < num_keys[:, None])[:, None, :, None]
        is_visible = (position < num_visible[..., None])[:, None]
        updated = _include(
            state,
            queries,
            _gather_tile(pools.keys, ids, queries.dtype),
            jnp.where(is_written, _gather_tile(pools.values, ids, queries.dtype), 0),
            is_visible,
            scale,
        )
        sees_any = (tile * tile_size < num_visible)[:, None]
        return SoftmaxState(
            updated.maximum,  # of a tile without keys the same as before
            jnp.where(sees_any, updated.total, state.total),
            jnp.where(sees_any[..., None], updated.weighted, state.weighted),
        )

    num_tiles = divide_up(jnp.max(num_keys), tile_size)
    statistics = jnp.zeros(queries.shape[:3], jnp.float32)
    empty = SoftmaxState(
        statistics + MASKED_SCORE, statistics, jnp.zeros(queries.shape, jnp.float32)
    )
    _, total, weighted = lax.fori_loop(0, num_tiles, visit, empty)
    return weighted / jnp.where(total > 0, total, 1.0)[..., None]


def _include(
    state: SoftmaxState,
    queries: Float[Array, "A K Q D"],
    keys: Float[Array, "A K C D"],
    values: Float[Array, "A K C D"],
    is_visible: Bool[Array, "A 1 Q C"],
    scale: float,
) -> SoftmaxState:
    """One step of the online softmax ("Online normalizer calculation for softmax",
    https://arxiv.org/abs/1805.02867)."""
    scores = jnp.where(is_visible, scale * _batched_dot(queries, keys, contract=3), MASKED_SCORE)
    maximum = jnp.maximum(state.maximum, jnp.max(scores, axis=-1))
    weights = jnp.where(is_visible, jnp.exp(scores - maximum[..., None]), 0.0)
    decay = jnp.exp(state.maximum - maximum)
    return SoftmaxState(
        maximum,
        state.total * decay + jnp.sum(weights, axis=-1),
        state.weighted * decay[..., None]
        + _batched_dot(weights.astype(values.dtype), values, contract=2),
    )


def _batched_dot(
    left: Float[Array, "A K Q M"], right: Float[Array, "A K C D"], *, contract: int
) -> Float[Array, "A K Q X"]:
    """Contract left's last axis with right's axis `contract`, per sequence and kv head."""
    # Float32 means float32: a GPU's default for it is TF32, which breaks the goldens.
    return lax.dot_general(
        left,
        right,
        (((3,), (contract,)), ((0, 1), (0, 1))),
        precision=lax.Precision.HIGHEST if left.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _gather_tile(
    pool: Float[Array, "LN K S D"], ids: Int[Array, "A blocks"], dtype: jnp.dtype
) -> Float[Array, "A K C D"]:
    """The blocks of one key tile, head-major; ids are in bounds."""
    blocks = pool.at[ids].get(mode="promise_in_bounds")
    num_sequences, _, num_kv_heads, _, head_dim = blocks.shape
    heads = blocks.swapaxes(1, 2).reshape(num_sequences, num_kv_heads, -1, head_dim)
    return heads.astype(dtype)


def _take(array: Array, row: Int[Array, " A"]) -> Array:
    """Rows of the leading axis; an index past the end reads the last row, which is masked."""
    return array.at[row].get(mode="clip")
