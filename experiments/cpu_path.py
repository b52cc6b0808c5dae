"""What does attention add to a launch on a CPU?

Question: how much longer is a launch of the layers than the same launch without attention, decoding
with 8 sequences, and with prompt chunks of 256 rows behind prefixes of several lengths?
Method: compiled `recurrent` steps of the `small` benchmark shape (E 512, L 8, 4 heads x 128),
random bfloat16 weights, float32 KV pool, blocks in random order; the LM head is a step of its own.
"without" is the same step with an attention that returns its queries; keys and values are written
in both. The two take turns, in both orders. Medians of milliseconds and of the ratios in pairs.

    python experiments/cpu_path.py

Result (2026-11-30, 2 cores of an AMD EPYC, CPU only, quiet; median of milliseconds with and without
attention, and of their ratios):

    decode 8 rows, 256 to 288      16.77     8.09   2.04 (1.95 to 2.13)
    chunk of 256 at    0           63.55    54.55   1.14 (1.12 to 1.23)
    chunk of 256 at  256           76.24    54.18   1.43 (1.39 to 1.46)
    chunk of 256 at  768           84.98    48.20   1.77 (1.76 to 1.80)
    chunk of 256 at 1792          121.73    48.02   2.53 (2.50 to 2.54)

Five earlier runs of the day had decode at 1.90 to 1.98. docs/benchmarks.md says what was tried.
"""

import argparse
import logging
from dataclasses import replace
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from looped.bench.model_maker import SHAPES
from looped.device.request_table import RowProgress, column
from looped.device.state import DeviceState, StateShape
from looped.models import family_of
from looped.programs import executables as programs
from looped.programs.executables import Executables
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.sched import LaunchKind

CONFIG = SHAPES["small"]
BLOCK_SIZE, MAX_NUM_SEQS, MAX_MODEL_LEN, CHUNK = 16, 16, 4096, 256
NUM_BLOCKS = 2048
DECODE_ROWS, DECODE_CONTEXTS = 8, (256, 288)
PROMPT_SLOT = DECODE_ROWS
PREFIXES = (0, 256, 768, 1792)  # 256, 512, 1,024 and 2,048 keys with the chunk itself


Launch = tuple[np.ndarray[Any, Any], int]
"""Upload, and the position of all decode rows."""


class Step:
    """One compiled step with a state of its own."""

    def __init__(self, executables: Executables, parameters: Parameters, num_rows: int) -> None:
        self.rung = (LaunchKind.RECURRENT, num_rows)
        self.layout = executables.layout(self.rung)
        self._compiled = executables.get(programs.Step(*self.rung))
        self._leaves = jax.tree.leaves(parameters)
        state = DeviceState.zeros(executables.shape)
        self.state = replace(state, block_tables=jnp.asarray(tables(state)))

    def time(self, launch: Launch) -> float:
        """Milliseconds from the call to the end of the device's work."""
        packed, position = launch
        progress = np.zeros(self.state.progress.shape, np.int32)
        progress[:DECODE_ROWS, column(RowProgress, "position")] = position
        progress[:DECODE_ROWS, column(RowProgress, "depth")] = 1
        self.state = replace(self.state, progress=jnp.asarray(progress))
        jax.block_until_ready(self.state)
        start = perf_counter()
        self.state, _ = self._compiled(self._leaves, self.state, jnp.asarray(packed))
        jax.block_until_ready(self.state)
        return 1e3 * (perf_counter() - start)


def tables(state: DeviceState) -> np.ndarray[Any, Any]:
    """Blocks in random order: 64 for each sequence that decodes, 128 for the prompt; every plane
    has the same."""
    tables = np.zeros(state.block_tables.shape, np.int32)
    blocks = np.random.default_rng(0).permutation(NUM_BLOCKS)
    for slot in range(DECODE_ROWS):
        tables[slot, :, :64] = blocks[64 * slot : 64 * slot + 64]
    tables[PROMPT_SLOT, :, :128] = blocks[-128:]
    return tables


def decode_launch(layout: Any, position: int) -> Launch:
    """Eight sequences at one position, in their second loop."""
    buffer = np.zeros(layout.size, np.int32)
    arrays = layout.host_views(buffer)
    arrays.decode_slots[:] = MAX_NUM_SEQS
    arrays.decode_slots[:DECODE_ROWS] = np.arange(DECODE_ROWS)
    arrays.head_slots[:] = arrays.prompts.finish_slots[:] = MAX_NUM_SEQS
    return buffer, position


def prompt_launch(layout: Any, prefix: int) -> Launch:
    """One chunk behind a prefix."""
    buffer = np.zeros(layout.size, np.int32)
    arrays = layout.host_views(buffer)
    arrays.decode_slots[:] = arrays.head_slots[:] = MAX_NUM_SEQS
    arrays.prompts.finish_slots[:] = MAX_NUM_SEQS
    arrays.prompts.slots[0] = PROMPT_SLOT
    arrays.prompts.first_positions[0] = prefix
    arrays.prompts.num_rows[0] = CHUNK
    arrays.token_ids[:] = np.arange(CHUNK) + 300
    return buffer, 0


def compare(with_attention: Step, without: Step, launch: Any, num_rounds: int) -> str:
    """Median milliseconds and ratio, the two steps in turns."""
    times: list[tuple[float, float]] = []
    for index in range(num_rounds + 2):
        packed = launch()
        if index % 2:
            first = with_attention.time(packed)
            pair = first, without.time(packed)
        else:
            second = without.time(packed)
            pair = with_attention.time(packed), second
        if index >= 2:
            times.append(pair)
    ratios = [first / second for first, second in times]
    low, _, high = quantiles(ratios, n=4)
    fastest = [min(column) for column in zip(*times, strict=True)]
    slow, fast = (median(column) for column in zip(*times, strict=True))
    return (
        f"{slow:8.2f} {fast:8.2f} {median(ratios):6.2f} ({low:.2f} to {high:.2f})"
        f"   fastest {fastest[0]:.2f} {fastest[1]:.2f}: {fastest[0] / fastest[1]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40)
    num_rounds = parser.parse_args().rounds
    logging.disable(logging.WARNING)
    model = family_of(CONFIG).model_class()(CONFIG, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    parameters = Parameters(model=model, lookahead=LookaheadHeads.create(CONFIG, seed=0))
    shape = StateShape(
        config=CONFIG,
        dtype=jnp.bfloat16,
        kv_dtype=jnp.float32,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        chunk_size=CHUNK,
        max_model_len=MAX_MODEL_LEN,
    )
    real = Executables(shape, parameters, backend="xla")
    with patch(
        "looped.programs.paged_attention.ragged_paged_attention", lambda query, *_, **__: query
    ):
        none = Executables(shape, parameters, backend="xla")
        for num_rows in (DECODE_ROWS, CHUNK):
            none.get(programs.Step(LaunchKind.RECURRENT, num_rows))
    print("                                with  without  ratio (quartiles)")
    steps = [Step(executables, parameters, DECODE_ROWS) for executables in (real, none)]
    positions = iter(range(DECODE_CONTEXTS[0] - 1, 10**6))
    width = DECODE_CONTEXTS[1] - DECODE_CONTEXTS[0]

    def next_decode() -> Launch:
        step = next(positions) - DECODE_CONTEXTS[0] + 1
        return decode_launch(steps[0].layout, DECODE_CONTEXTS[0] - 1 + step % width)

    print(f"decode 8 rows, 256 to 288   {compare(*steps, next_decode, 4 * num_rounds)}")
    steps = [Step(executables, parameters, CHUNK) for executables in (real, none)]
    for prefix in PREFIXES:
        launch = partial(prompt_launch, steps[0].layout, prefix)
        print(f"chunk of 256 at {prefix:4}        {compare(*steps, launch, num_rounds)}")


if __name__ == "__main__":
    main()
