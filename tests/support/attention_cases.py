"""Random ragged batches for the attention contract, and what a float64 oracle says about them.

Every slot of a pool that no row may read is NaN, block 0 and the last block of every layer among
them, every table entry past a sequence's length is garbage, and the highest id beside the last is
always in use: a backend that reads what it should not is seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from looped.pallas_kernels import AttentionMetadata

GARBAGE_IDS = np.array([-1, -(2**31), 2**31 - 1, 10**6], np.int32)


@dataclass(frozen=True, kw_only=True)
class PaddedShape:
    """What a launch compiles for. One executable per shape, any number of batches through it."""

    num_rows: int
    max_num_seqs: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_model_len: int
    query_dtype: str = "float32"
    pool_dtype: str = "float32"
    num_layers: int = 2
    window: int = 1
    """W, prompt items that a request may have in a launch."""

    @property
    def num_sequences(self) -> int:
        """R."""
        return min(self.num_rows, self.max_num_seqs)

    @property
    def num_items(self) -> int:
        """I."""
        return min(self.num_rows, self.window * self.max_num_seqs)

    @property
    def table_width(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def num_blocks(self) -> int:
        """Per layer: a full table for every decode row and prompt item, and two canaries."""
        return (self.num_sequences + self.num_items) * self.table_width + 2


@dataclass(frozen=True)
class Decode:
    """A decode row that sees `length` keys, its own included.

    The seed fixes the sequence's keys, values and queries by position, wherever it is placed and
    however it is cut into chunks; None draws one.
    """

    length: int
    seed: int | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt item of `count` rows, the first at `position`; the seed as above."""

    position: int
    count: int
    seed: int | None = None


@dataclass(frozen=True)
class AttentionCase:
    """One call of the op, as NumPy arrays in the order of its parameters."""

    q: np.ndarray
    k_pool: np.ndarray
    v_pool: np.ndarray
    metadata: AttentionMetadata
    first_block: np.int32

    def arguments(self) -> tuple[Any, ...]:
        return tuple(vars(self).values())


def random_mix(
    rng: np.random.Generator, shape: PaddedShape
) -> tuple[list[Decode | None], list[Prompt]]:
    """Decode rows (None: a row left unused) and prompt items that fit the shape."""
    decodes: list[Decode | None] = [
        Decode(int(rng.integers(1, shape.max_model_len + 1))) if rng.random() < 0.7 else None
        for _ in range(rng.integers(0, shape.num_sequences + 1))
    ]
    prompts = []
    free = shape.num_rows - len(decodes)
    while free and len(prompts) < shape.num_items and rng.random() < 0.8:
        count = int(rng.integers(1, min(free, 128) + 1))
        longest = shape.max_model_len - count
        prompts.append(Prompt(int(rng.choice([0, rng.integers(0, longest + 1)])), count))
        free -= count
    return decodes, prompts


def build_case(
    rng: np.random.Generator,
    shape: PaddedShape,
    decodes: Sequence[Decode | None],
    prompts: Sequence[Prompt],
    *,
    at_end: bool = False,
) -> AttentionCase:
    """Fill pools and tables. Prompt rows follow the decode rows, or end exactly at row T."""
    num_sequences, num_items, width = shape.num_sequences, shape.num_items, shape.table_width
    layer = int(rng.integers(shape.num_layers))
    highest = shape.num_blocks - 2
    free_ids = np.concatenate([[highest], rng.permutation(np.arange(1, highest))])
    k_pool, v_pool = poisoned_pool(shape), poisoned_pool(shape)
    q = rng.standard_normal((shape.num_rows, shape.num_heads, shape.head_dim))
    num_used = 0

    def place(first_row: int, count: int, num_keys: int, seed: int | None) -> np.ndarray:
        """Write a sequence's keys and values and its last `count` queries; return its table."""
        nonlocal num_used
        seed = int(rng.integers(2**31)) if seed is None else seed
        num_blocks = -(-num_keys // shape.block_size)
        ids = free_ids[num_used : num_used + num_blocks]
        num_used += num_blocks
        position = np.arange(num_keys)
        block = layer * shape.num_blocks + ids[position // shape.block_size]
        for stream, pool in enumerate((k_pool, v_pool)):
            entries = _by_position(seed, stream, num_keys, shape.num_kv_heads, shape.head_dim)
            pool[block, :, position % shape.block_size] = entries
        queries = _by_position(seed, 2, num_keys, shape.num_heads, shape.head_dim)
        q[first_row : first_row + count] = queries[num_keys - count :]
        return np.concatenate([ids, rng.choice(GARBAGE_IDS, width - num_blocks)])

    decode_tables = rng.choice(GARBAGE_IDS, (num_sequences, width))
    decode_lengths = np.zeros(num_sequences, np.int32)
    for row, decode in enumerate(decodes):
        if decode is not None:
            decode_lengths[row] = decode.length
            decode_tables[row] = place(row, 1, decode.length, decode.seed)

    prompt_tables = rng.choice(GARBAGE_IDS, (num_items, width))
    prompt_position, prompt_first_row = rng.choice(GARBAGE_IDS, (2, num_items))
    prompt_rows = np.zeros(num_items, np.int32)
    row = shape.num_rows - sum(prompt.count for prompt in prompts) if at_end else len(decodes)
    # Items that are used need not be the first ones.
    items = sorted(rng.choice(num_items, len(prompts), replace=False))
    for item, prompt in zip(items, prompts, strict=True):
        prompt_position[item], prompt_rows[item] = prompt.position, prompt.count
        prompt_first_row[item] = row
        num_keys = prompt.position + prompt.count
        prompt_tables[item] = place(row, prompt.count, num_keys, prompt.seed)
        row += prompt.count
    return AttentionCase(
        q.astype(jnp.dtype(shape.query_dtype)),
        k_pool,
        v_pool,
        AttentionMetadata(
            decode_tables=decode_tables.astype(np.int32),
            decode_lengths=decode_lengths,
            prompt_tables=prompt_tables.astype(np.int32),
            prompt_position=prompt_position,
            prompt_first_row=prompt_first_row,
            prompt_rows=prompt_rows,
        ),
        np.int32(layer * shape.num_blocks),
    )


def _by_position(
    seed: int, stream: int, num_keys: int, num_heads: int, head_dim: int
) -> np.ndarray:
    return np.random.default_rng([seed, stream]).standard_normal((num_keys, num_heads, head_dim))


def poisoned_pool(shape: PaddedShape) -> np.ndarray:
    """A pool in which no slot may be read yet."""
    size = (
        shape.num_layers * shape.num_blocks,
        shape.num_kv_heads,
        shape.block_size,
        shape.head_dim,
    )
    return np.full(size, np.nan, jnp.dtype(shape.pool_dtype))


def expected_attention(case: AttentionCase, scale: float) -> np.ndarray:
    """The contract in float64, a sequence at a time; rows of no sequence are zeros."""
    out, metadata = np.zeros(case.q.shape, np.float64), case.metadata
    for row, length in enumerate(metadata.decode_lengths):
        if length:
            out[[row]] = _sequence(case, row, 1, metadata.decode_tables[row], int(length), scale)
    for item, count in enumerate(metadata.prompt_rows):
        if count:
            first_row = metadata.prompt_first_row[item]
            num_keys = metadata.prompt_position[item] + count
            out[first_row : first_row + count] = _sequence(
                case, first_row, count, metadata.prompt_tables[item], int(num_keys), scale
            )
    return out


def _sequence(
    case: AttentionCase,
    first_row: int,
    num_rows: int,
    table: np.ndarray,
    num_keys: int,
    scale: float,
) -> np.ndarray:
    """The last row sees all keys, each row before it one less."""
    _, num_kv_heads, block_size, head_dim = case.k_pool.shape
    position = np.arange(num_keys)
    block = case.first_block + table[position // block_size]
    keys, values = (
        pool[block, :, position % block_size].astype(np.float64).swapaxes(0, 1)
        for pool in (case.k_pool, case.v_pool)
    )
    queries = case.q[first_row : first_row + num_rows].astype(np.float64)
    queries = queries.reshape(num_rows, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
    scores = scale * (queries @ keys[:, None].swapaxes(-1, -2))
    is_visible = position <= (num_keys - num_rows + np.arange(num_rows))[:, None]
    scores = np.where(is_visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = (weights @ values[:, None]).transpose(2, 0, 1, 3)
    return out.reshape(num_rows, *case.q.shape[1:])


def bits(array: np.ndarray) -> np.ndarray:
    """The same memory as integers, so that NaN and -0.0 compare by their bits."""
    array = np.asarray(array)
    assert array.dtype in (np.float32, np.float16, ml_dtypes.bfloat16)
    return array.view(np.uint32 if array.itemsize == 4 else np.uint16)
