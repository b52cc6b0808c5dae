"""The Triton kernels of backend "triton"; `attention` launches them.

Importing this file imports Triton, so only functions that are about to launch do it. Whether
Triton compiles or interprets (TRITON_INTERPRET=1) is settled here, when kernels are decorated.

One kv head of one block is [S D], contiguous. A program attends from a tile of queries that share
a kv head: of a decode row up to 16 of its H / K heads; of a prompt item 64 (or so) consecutive
pairs of row and head. Keys come in tiles from position 0 upwards, found through the block table.

Whatever is a size of the model or of a tile is a `tl.constexpr`; what depends on the launch's
bucket (T, I, R) is only in the grid, or in kernels that cost nothing to compile, so that every
bucket shares one compiled kernel. Offsets of blocks are 64-bit: a pool passes 2^31 elements.
"""

import triton
import triton.language as tl

# Stands for the score of a key that is not seen, set after all scaling. Minus infinity would give
# NaN as the difference of two; with this, exp2(sentinel - sentinel) is 1 and masked by hand.
MASKED_SCORE = tl.constexpr(-1e30)


@triton.jit
def _attend(
    queries,
    num_visible,
    first_key,
    end_key,
    table,
    k_pool,
    v_pool,
    first_block,
    kv_head,
    SCALE_LOG2: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Online softmax in base 2 of queries [M, D] over keys first_key..end_key-1.

    Query m sees keys 0..num_visible[m]-1. Returns maximum [M], total [M] and weighted values
    [M, D], all float32; a tile of which a query sees nothing leaves its three as they were.
    Slots at end_key and later are never read: they may hold NaN, and 0 * NaN is NaN.
    """
    dim = tl.arange(0, PADDED_DIM)
    is_dim = dim < HEAD_DIM
    maximum = tl.full([queries.shape[0]], MASKED_SCORE, tl.float32)
    total = tl.full([queries.shape[0]], 0.0, tl.float32)
    weighted = tl.full([queries.shape[0], PADDED_DIM], 0.0, tl.float32)
    for start in range(first_key, end_key, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        is_written = position < end_key
        block = tl.load(table + position // BLOCK_SIZE, mask=is_written, other=0)
        head = (first_block + block.to(tl.int64)) * NUM_KV_HEADS + kv_head
        entry = head * (BLOCK_SIZE * HEAD_DIM) + (position % BLOCK_SIZE) * HEAD_DIM
        keys = tl.load(
            k_pool + entry[None, :] + dim[:, None],
            mask=is_dim[:, None] & is_written[None, :],
            other=0.0,
        )
        scores = tl.dot(queries, keys, input_precision="ieee") * SCALE_LOG2
        is_visible = position[None, :] < num_visible[:, None]
        scores = tl.where(is_visible, scores, MASKED_SCORE)
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.where(is_visible, tl.exp2(scores - new_maximum[:, None]), 0.0)
        decay = tl.exp2(maximum - new_maximum)
        values = tl.load(
            v_pool + entry[:, None] + dim[None, :],
            mask=is_written[:, None] & is_dim[None, :],
            other=0.0,
        )
        total = total * decay + tl.sum(weights, axis=1)
        weighted = weighted * decay[:, None]
        weighted = tl.dot(weights.to(queries.dtype), values, weighted, input_precision="ieee")
        maximum = new_maximum
    return maximum, total, weighted


@triton.jit
def _attend_prompt_tile(
    item,
    tile,
    kv_head,
    q,
    k_pool,
    v_pool,
    tables,
    position,
    first_row,
    rows,
    first_block,
    out,
    SCALE_LOG2: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Outputs of queries tile * QUERY_TILE onwards of an item; query f is row f // GROUP of it."""
    num_rows = tl.load(rows + item)
    query = tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
    row_of_item = query // GROUP
    is_row = row_of_item < num_rows
    num_visible = tl.where(is_row, tl.load(position + item) + row_of_item + 1, 0)
    row = tl.load(first_row + item) + row_of_item
    head = kv_head * GROUP + query % GROUP
    dim = tl.arange(0, PADDED_DIM)
    place = (row * (NUM_KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + dim[None, :]
    is_place = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    queries = tl.load(q + place, mask=is_place, other=0.0)
    _, total, weighted = _attend(
        queries,
        num_visible,
        0,
        tl.max(num_visible),
        tables + item * TABLE_WIDTH,
        k_pool,
        v_pool,
        tl.load(first_block).to(tl.int64),
        kv_head,
        SCALE_LOG2,
        NUM_KV_HEADS,
        BLOCK_SIZE,
        HEAD_DIM,
        PADDED_DIM,
        KEY_TILE,
    )
    attended = weighted / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + place, attended.to(out.dtype.element_ty), mask=is_place)


@triton.jit
def _keys_per_split(
    length, KEY_TILE: tl.constexpr, NUM_SPLITS: tl.constexpr, MIN_SPLIT_KEYS: tl.constexpr
):
    """Keys of each split of a decode row but its last: whole tiles, from the row's length alone."""
    tiles = (length + (NUM_SPLITS * KEY_TILE - 1)) // (NUM_SPLITS * KEY_TILE)
    return tl.maximum(tiles, MIN_SPLIT_KEYS // KEY_TILE) * KEY_TILE


@triton.jit
def _attend_decode_split(
    tile,
    kv_head,
    split,
    q,
    k_pool,
    v_pool,
    tables,
    lengths,
    first_block,
    part_maximum,
    part_total,
    part_weighted,
    SCALE_LOG2: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MIN_SPLIT_KEYS: tl.constexpr,
):
    """One split of a tile of one decode row's heads: its softmax state, [R splits H (D)]."""
    HEAD_TILES: tl.constexpr = (GROUP + QUERY_TILE - 1) // QUERY_TILE
    row = tile // HEAD_TILES
    length = tl.load(lengths + row)
    split_keys = _keys_per_split(length, KEY_TILE, NUM_SPLITS, MIN_SPLIT_KEYS)
    first_key = split * split_keys
    # A split without keys writes nothing, and the combination does not read it.
    if first_key < length:
        member = tile % HEAD_TILES * QUERY_TILE + tl.arange(0, QUERY_TILE)
        is_head = member < GROUP
        head = kv_head * GROUP + member
        dim = tl.arange(0, PADDED_DIM)
        is_place = is_head[:, None] & (dim < HEAD_DIM)[None, :]
        source = (row * (NUM_KV_HEADS * GROUP) + head)[:, None] * HEAD_DIM + dim[None, :]
        maximum, total, weighted = _attend(
            tl.load(q + source, mask=is_place, other=0.0),
            tl.where(is_head, length, 0),
            first_key,
            tl.minimum(first_key + split_keys, length),
            tables + row * TABLE_WIDTH,
            k_pool,
            v_pool,
            tl.load(first_block).to(tl.int64),
            kv_head,
            SCALE_LOG2,
            NUM_KV_HEADS,
            BLOCK_SIZE,
            HEAD_DIM,
            PADDED_DIM,
            KEY_TILE,
        )
        part = (row * NUM_SPLITS + split) * (NUM_KV_HEADS * GROUP) + head
        tl.store(part_maximum + part, maximum, mask=is_head)
        tl.store(part_total + part, total, mask=is_head)
        tl.store(part_weighted + part[:, None] * HEAD_DIM + dim[None, :], weighted, mask=is_place)


@triton.jit
def prompt_kernel(
    q,
    k_pool,
    v_pool,
    work_item,
    work_first,
    tables,
    position,
    first_row,
    rows,
    first_block,
    out,
    SCALE_LOG2: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Prompt rows. Grid (work tiles, K); a work tile without an item (-1) is left at once."""
    item = tl.load(work_item + tl.program_id(0))
    if item >= 0:
        _attend_prompt_tile(
            item,
            tl.program_id(0) - tl.load(work_first + tl.program_id(0)),
            tl.program_id(1),
            q,
            k_pool,
            v_pool,
            tables,
            position,
            first_row,
            rows,
            first_block,
            out,
            SCALE_LOG2,
            TABLE_WIDTH,
            GROUP,
            NUM_KV_HEADS,
            BLOCK_SIZE,
            HEAD_DIM,
            PADDED_DIM,
            QUERY_TILE,
            KEY_TILE,
        )


@triton.jit
def decode_kernel(
    q,
    k_pool,
    v_pool,
    tables,
    lengths,
    first_block,
    part_maximum,
    part_total,
    part_weighted,
    SCALE_LOG2: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MIN_SPLIT_KEYS: tl.constexpr,
):
    """Decode rows, split over their keys. Grid (R * head tiles, K, splits)."""
    _attend_decode_split(
        tl.program_id(0),
        tl.program_id(1),
        tl.program_id(2),
        q,
        k_pool,
        v_pool,
        tables,
        lengths,
        first_block,
        part_maximum,
        part_total,
        part_weighted,
        SCALE_LOG2,
        TABLE_WIDTH,
        GROUP,
        NUM_KV_HEADS,
        BLOCK_SIZE,
        HEAD_DIM,
        PADDED_DIM,
        QUERY_TILE,
        KEY_TILE,
        NUM_SPLITS,
        MIN_SPLIT_KEYS,
    )


@triton.jit
def fused_kernel(
    q,
    k_pool,
    v_pool,
    work_item,
    work_first,
    prompt_tables,
    prompt_position,
    prompt_first_row,
    prompt_rows,
    decode_tables,
    decode_lengths,
    first_block,
    out,
    part_maximum,
    part_total,
    part_weighted,
    NUM_WORK_TILES: tl.constexpr,
    SCALE_LOG2: tl.constexpr,
    TABLE_WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    DECODE_QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MIN_SPLIT_KEYS: tl.constexpr,
):
    """Both kinds in one launch, prompts first. Grid (work tiles + R * head tiles * splits, K)."""
    index = tl.program_id(0)
    kv_head = tl.program_id(1)
    if index < NUM_WORK_TILES:
        item = tl.load(work_item + index)
        if item >= 0:
            _attend_prompt_tile(
                item,
                index - tl.load(work_first + index),
                kv_head,
                q,
                k_pool,
                v_pool,
                prompt_tables,
                prompt_position,
                prompt_first_row,
                prompt_rows,
                first_block,
                out,
                SCALE_LOG2,
                TABLE_WIDTH,
                GROUP,
                NUM_KV_HEADS,
                BLOCK_SIZE,
                HEAD_DIM,
                PADDED_DIM,
                QUERY_TILE,
                KEY_TILE,
            )
    else:
        _attend_decode_split(
            (index - NUM_WORK_TILES) // NUM_SPLITS,
            kv_head,
            (index - NUM_WORK_TILES) % NUM_SPLITS,
            q,
            k_pool,
            v_pool,
            decode_tables,
            decode_lengths,
            first_block,
            part_maximum,
            part_total,
            part_weighted,
            SCALE_LOG2,
            TABLE_WIDTH,
            GROUP,
            NUM_KV_HEADS,
            BLOCK_SIZE,
            HEAD_DIM,
            PADDED_DIM,
            DECODE_QUERY_TILE,
            KEY_TILE,
            NUM_SPLITS,
            MIN_SPLIT_KEYS,
        )


@triton.jit
def finish_kernel(
    part_maximum,
    part_total,
    part_weighted,
    lengths,
    prompt_first_row,
    prompt_rows,
    out,
    out_again,
    NUM_DECODE: tl.constexpr,
    NUM_ITEMS: tl.constexpr,
    PADDED_ITEMS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    MIN_SPLIT_KEYS: tl.constexpr,
):
    """In place: decode rows from their splits, zeros in rows of nobody. Grid (T, head tiles)."""
    row = tl.program_id(0)
    item = tl.arange(0, PADDED_ITEMS)
    is_item = item < NUM_ITEMS
    first_row = tl.load(prompt_first_row + item, mask=is_item, other=0)
    num_rows = tl.load(prompt_rows + item, mask=is_item, other=0)
    # An unused item's first row may be any number, and it owns no row whatever that is.
    is_owner = (row >= first_row) & (row < first_row + num_rows) & (num_rows > 0)
    if tl.max(is_owner.to(tl.int32)) == 0:
        length = 0
        if row < NUM_DECODE:
            length = tl.load(lengths + row)
        split_keys = _keys_per_split(length, KEY_TILE, NUM_SPLITS, MIN_SPLIT_KEYS)
        head = tl.program_id(1) * HEAD_TILE + tl.arange(0, HEAD_TILE)
        is_head = head < NUM_HEADS
        dim = tl.arange(0, PADDED_DIM)
        is_place = is_head[:, None] & (dim < HEAD_DIM)[None, :]
        maximum = tl.full([HEAD_TILE], MASKED_SCORE, tl.float32)
        total = tl.full([HEAD_TILE], 0.0, tl.float32)
        weighted = tl.full([HEAD_TILE, PADDED_DIM], 0.0, tl.float32)
        for split in range((length + split_keys - 1) // split_keys):
            part = (row * NUM_SPLITS + split) * NUM_HEADS + head
            split_maximum = tl.load(part_maximum + part, mask=is_head, other=MASKED_SCORE)
            new_maximum = tl.maximum(maximum, split_maximum)
            decay = tl.exp2(maximum - new_maximum)
            weight = tl.exp2(split_maximum - new_maximum)
            split_total = tl.load(part_total + part, mask=is_head, other=0.0)
            total = total * decay + split_total * weight
            split_weighted = tl.load(
                part_weighted + part[:, None] * HEAD_DIM + dim[None, :], mask=is_place, other=0.0
            )
            weighted = weighted * decay[:, None] + split_weighted * weight[:, None]
            maximum = new_maximum
        attended = weighted / tl.where(total > 0, total, 1.0)[:, None]
        place = (row * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
        tl.store(out + place, attended.to(out.dtype.element_ty), mask=is_place)
