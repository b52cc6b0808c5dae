"""How fast is the XLA attention backend on CPU, and with which tile sizes?

Method: one layer's call of `ragged_paged_attention` in float32, 4 query and 4 kv heads of 128,
blocks of 16 in random order, tables of 4,096 positions, 16 sequences at most. The variants of a
case take turns in random order, 20 rounds; the fastest and the median round are given in
milliseconds. "naive" is one gather of all tokens and one softmax, at the exact context (the op
does not know it ahead), up to the context whose gather fits in memory. Then a donated step of two
layers, each a write and an attention, at two pool sizes, 8 x 320 keys; and what the op costs to
compile.

    .venv/bin/python experiments/xla_attention.py

Result, 2026-11-29, XLA:CPU (jax 0.10.2) on 2 cores shared with other work (load 3 to 4), fastest
round in milliseconds; "keys/group/queries" are the tile sizes, the first is what shipped then. What
ships now is 64/4 for decode rows and, for prompt rows, 128 keys and 128 queries, which came with
products in bfloat16; those were measured in whole launches, and cpu_path.py has the figures:

                              64/4/64  32/4/64  128/4/64  64/1/64  64/16/64   naive
    decode 8 x 320               0.73     0.96      1.00     1.08      0.88    2.83
    decode 16 x 1024             7.77     8.62      7.84    10.67      7.05   45.83
    decode 16 x 40               0.24     0.25      0.43     0.31      0.35    0.42
    decode 3 of 16, to 700       0.54     0.57      0.58     0.38      1.51   17.26
    decode 16, 30 to 1500        4.43     4.21      4.95     4.60      5.90   41.66

                              64/4/64 128/4/64  256/4/64  64/4/32  64/4/128   naive
    prompt 16 rows at 0          0.09     0.12      0.19     0.09      0.10    0.14
    prompt 16 rows at 512        0.55     0.50      0.57     0.60      0.58   12.16
    prompt 16 rows at 2048       2.15     2.15      2.03     1.77      1.81
    prompt 128 rows at 0         0.52     0.59      1.47     0.61      0.64   27.55
    prompt 128 rows at 512       2.65     2.68      3.31     3.06      2.48  124.86
    prompt 128 rows at 2048      9.67     8.98     11.71    11.96      8.64
    prompt 256 rows at 0         1.46     1.64      2.19     1.86      1.78  106.47
    prompt 256 rows at 512       5.35     5.17      5.75     6.45      5.21
    prompt 256 rows at 2048     17.72    16.70     16.55    20.85     15.88

    step of two layers: 0.84 ms at 64 blocks a layer, 0.85 ms at 4096, ratio 1.02
    lowering and compiling 24 layers at 144 rows: 5.1 s

Decode is bound by memory: the tile has to stay in a core's cache, and a group of 4 costs a ragged
batch less than all 16 at the pace of the longest. Prompt tiles are bound by the two products,
about 100 GFLOP/s; larger ones gain about a tenth on long prefixes and lose as much on short ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from looped.pallas_kernels import AttentionMetadata, ragged_paged_attention, write_kv, xla

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TABLE_WIDTH, MAX_NUM_SEQS = 4, 4, 128, 16, 256, 16
NUM_BLOCKS = 2 * MAX_NUM_SEQS * 64 + TABLE_WIDTH
SCALE = HEAD_DIM**-0.5
NUM_ROUNDS = 20

DECODE_CASES = {
    "decode 8 x 320": [320] * 8,
    "decode 16 x 1024": [1024] * 16,
    "decode 16 x 40": [40] * 16,
    "decode 3 of 16 rows, to 700": [700, 300, 90] + [0] * 13,
    "decode 16 ragged, 30 to 1500": [30 + 98 * index for index in range(16)],
}
PROMPT_CASES = {
    f"prompt {rows} rows at {prefix}": (rows, prefix)
    for rows in (16, 128, 256)
    for prefix in (0, 512, 2048)
}
# (key tile, decode group, query tile); the first is what ships.
SHIPPED_DECODE = (xla.DECODE_KEY_TILE_SIZE, xla.DECODE_GROUP_SIZE, xla.QUERY_TILE_SIZE)
SHIPPED_PROMPT = (xla.PROMPT_KEY_TILE_SIZE, xla.DECODE_GROUP_SIZE, xla.QUERY_TILE_SIZE)
DECODE_TILES = [SHIPPED_DECODE, (32, 4, 128), (128, 4, 128), (64, 1, 128), (64, 16, 128)]
PROMPT_TILES = [SHIPPED_PROMPT, (64, 4, 64), (128, 4, 64), (256, 4, 64), (64, 4, 128)]


def arguments(lengths: list[int], prompt: tuple[int, int], num_blocks: int) -> tuple[Any, ...]:
    """Decode lengths and (rows, prefix) of one prompt item, as the op takes them."""
    rng = np.random.default_rng(0)
    rows, prefix = prompt
    num_rows = max(rows, len(lengths))
    num_sequences = min(num_rows, MAX_NUM_SEQS)
    pool = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    tables = rng.permutation(np.arange(num_sequences * TABLE_WIDTH) % num_blocks)
    tables = jnp.asarray(tables.reshape(num_sequences, TABLE_WIDTH), jnp.int32)
    item = np.zeros((3, num_sequences), np.int32)
    item[:, 0] = prefix, 0, rows
    decode_lengths = np.zeros(num_sequences, np.int32)
    decode_lengths[: len(lengths)] = lengths
    return (
        jnp.asarray(rng.standard_normal((num_rows, NUM_HEADS, HEAD_DIM)), jnp.float32),
        jnp.asarray(rng.standard_normal(pool, np.float32)),
        jnp.asarray(rng.standard_normal(pool, np.float32)),
        AttentionMetadata(
            decode_tables=tables,
            decode_lengths=jnp.asarray(decode_lengths),
            prompt_tables=tables,
            prompt_position=jnp.asarray(item[0]),
            prompt_first_row=jnp.asarray(item[1]),
            prompt_rows=jnp.asarray(item[2]),
        ),
        jnp.int32(0),
    )


def tiled(tiles: tuple[int, int, int], args: tuple[Any, ...]) -> Callable[..., Any]:
    """Compile the op with these tile sizes."""
    key_tile, group, query_tile = tiles
    # A case has rows of one kind, so that one of the two key tiles is not used.
    with patch.multiple(
        xla,
        DECODE_KEY_TILE_SIZE=key_tile,
        PROMPT_KEY_TILE_SIZE=key_tile,
        DECODE_GROUP_SIZE=group,
        QUERY_TILE_SIZE=query_tile,
    ):
        # A fresh function: jit remembers traces by function, and these differ by a global.
        op = partial(ragged_paged_attention, scale=SCALE)
        return jax.jit(lambda *values: op(*values)).lower(*args).compile()


def naive(num_decode: int, context: int) -> Callable[..., Any]:
    """Attend to `context` keys per row through one per-token gather."""

    def attend(q: Any, k_pool: Any, v_pool: Any, metadata: AttentionMetadata, _: Any) -> Any:
        position = jnp.arange(context)
        if num_decode:
            num_visible, table = metadata.decode_lengths, metadata.decode_tables
        else:
            num_visible = metadata.prompt_position[0] + 1 + jnp.arange(q.shape[0])
            table = jnp.broadcast_to(metadata.prompt_tables[0], (q.shape[0], TABLE_WIDTH))
        block, offset = table[:, position // BLOCK_SIZE], position % BLOCK_SIZE
        scores = SCALE * jnp.einsum("rhd,rchd->rhc", q, k_pool[block, :, offset])
        is_visible = (position < num_visible[:, None])[:, None]
        weights = jax.nn.softmax(jnp.where(is_visible, scores, -1e30), axis=-1)
        return jnp.einsum("rhc,rchd->rhd", weights, v_pool[block, :, offset])

    return attend


def race(variants: dict[str, Callable[..., Any]], args: tuple[Any, ...]) -> None:
    """Print each variant's time; they take turns, so that a slow minute hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = np.random.default_rng(0)
    for round_index in range(NUM_ROUNDS + 1):
        for name in order.permutation(list(variants)):
            start = perf_counter()
            jax.block_until_ready(variants[name](*args))
            if round_index:
                times[name].append(1e3 * (perf_counter() - start))
    for name, values in times.items():
        print(f"  {name:<28} {min(values):>9.2f} {median(values):>9.2f}")


def race_tiles(name: str, args: tuple[Any, ...], tiles: list[tuple[int, int, int]]) -> None:
    """Print one case: every tiling, and the naive form where it fits in memory."""
    print(name)
    variants = {f"keys {k} group {g} queries {q}": tiled((k, g, q), args) for k, g, q in tiles}
    metadata: AttentionMetadata = args[3]
    num_decode = int((metadata.decode_lengths > 0).sum())
    longest_prompt = metadata.prompt_position[0] + metadata.prompt_rows[0]
    context = int(max(metadata.decode_lengths.max(), longest_prompt))
    race(variants, args)
    if num_decode or context <= 640:
        # On its own: it empties the caches for whoever comes next.
        race({"naive": jax.jit(naive(num_decode, context)).lower(*args).compile()}, args)


def compile_step(num_layers: int, num_blocks: int, args: tuple[Any, ...]) -> Any:
    """Compile a donated step of several layers, each a write of the rows and an attention."""
    q, _, _, metadata, _ = args

    def step(k_pool: Any, v_pool: Any, rows: Any, metadata: AttentionMetadata) -> Any:
        ids = jnp.resize(metadata.decode_tables[:, 0], rows.shape[0])
        for layer in range(num_layers):
            first_block = layer * num_blocks
            k_pool, v_pool = write_kv(k_pool, v_pool, rows, rows, ids, ids % 16, first_block)
            rows = ragged_paged_attention(rows, k_pool, v_pool, metadata, first_block, SCALE)
        return k_pool, v_pool, rows

    pool = jax.ShapeDtypeStruct(
        (num_layers * num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), jnp.float32
    )
    donated = jax.jit(step, donate_argnums=(0, 1))
    return donated.lower(pool, pool, q, metadata).compile()


def step_time(num_blocks: int) -> float:
    """Return the fastest milliseconds of two layers in a pool of that many blocks a layer."""
    # The same 64 blocks of any pool, or the larger one would only show the cache's misses.
    args = arguments([320] * 8, (0, 0), 64)
    step = compile_step(2, num_blocks, args)
    pools = [
        jnp.ones((2 * num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM), jnp.float32)
        for _ in range(2)
    ]
    times = []
    for _ in range(10 * NUM_ROUNDS):
        start = perf_counter()
        *pools, _ = jax.block_until_ready(step(*pools, args[0], args[3]))
        times.append(1e3 * (perf_counter() - start))
    return min(times)


def main() -> None:
    """Print the tables."""
    print(f"  {'milliseconds of one layer':<28} {'fastest':>9} {'median':>9}")
    for name, lengths in DECODE_CASES.items():
        race_tiles(name, arguments(lengths, (0, 0), NUM_BLOCKS), DECODE_TILES)
    for name, prompt in PROMPT_CASES.items():
        race_tiles(name, arguments([], prompt, NUM_BLOCKS), PROMPT_TILES)
    small, large = step_time(64), step_time(4096)
    print(
        f"step of two layers: {small:.2f} ms at 64 blocks a layer, {large:.2f} ms at 4096, "
        f"ratio {large / small:.2f}"
    )
    mixed = arguments([320] * MAX_NUM_SEQS, (144, 0), 64)
    start = perf_counter()
    compile_step(24, 64, mixed)
    print(f"lowering and compiling 24 layers at 144 rows: {perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
