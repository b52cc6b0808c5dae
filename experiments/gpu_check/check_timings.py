"""Decode steps and mixed launches in the 1.4B shape, as shares of what this card can do.

The floors are measured on the card in the same run: bytes per second of a large copy, products per
second of a large matrix product. A launch can be no faster than its weights and keys are read, nor
than its products are made; the larger of the two is its floor.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from engines_here import backends_here, random_model
from report import Outcome, Recorder

from looped.executables import Executables
from looped.sched import LaunchKind
from looped.state import DeviceState, StateShape
from looped.steps import Parameters, lookahead_head

DECODE_SEQUENCES = (1, 8, 32, 128)
CONTEXTS = (1024, 4096, 16384)
BUDGETS = (128, 256, 512, 1024)


@dataclass(frozen=True)
class Sizes:
    """What fits: the real sizes on a GPU, tiny ones to rehearse."""

    sequences: tuple[int, ...]
    contexts: tuple[int, ...]
    budgets: tuple[int, ...]
    copy_bytes: int
    matrix: int
    pool_bytes: int


@dataclass(frozen=True)
class Floors:
    """Measured on this card."""

    bytes_per_second: float
    operations_per_second: float


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    sizes = (
        Sizes((1, 2), (32,), (16,), 2**20, 128, 2**22)
        if is_rehearsal
        else Sizes(DECODE_SEQUENCES, CONTEXTS, BUDGETS, 2**32, 8192, pool_bytes(jax.devices()[0]))
    )
    backends = backends_here(is_rehearsal=is_rehearsal)[: 1 if is_rehearsal else None]
    # The plain backend last: it is there to compare with.
    backends = sorted(backends, key=lambda name: ("fused" in name, name == "xla"))
    layer_forms = ("unrolled",) if is_rehearsal else ("unrolled", "scanned")
    decodes = [
        (backend, layers, num_seqs, context)
        for layers in layer_forms
        for backend in backends
        for num_seqs in sizes.sequences
        for context in sizes.contexts
    ]
    mixed = [
        (backend, layers, budget)
        for layers in layer_forms
        for backend in backends
        for budget in sizes.budgets
    ]
    recorder.plan(["floors", *map(decode_name, decodes), *map(mixed_name, mixed)])
    floors: list[Floors] = []

    def measure_floors() -> Outcome:
        floors.append(Floors(copy_rate(sizes.copy_bytes), product_rate(sizes.matrix)))
        return True, {
            "copy, GB/s": round(floors[0].bytes_per_second / 1e9),
            "bfloat16 products, TFLOP/s": round(floors[0].operations_per_second / 1e12, 1),
        }

    recorder.check("floors", measure_floors)
    for layers in layer_forms:
        bench = Bench(sizes, layers, floors[0], is_rehearsal=is_rehearsal)
        for case in (case for case in decodes if case[1] == layers):
            recorder.check(decode_name(case), bench.decode, case[0], *case[2:])
        for case in (case for case in mixed if case[1] == layers):
            recorder.check(mixed_name(case), bench.mixed, case[0], case[2])
        bench.close()


def decode_name(case: tuple[str, str, int, int]) -> str:
    backend, layers, num_seqs, context = case
    return f"decode {num_seqs} x {context}, {backend}, {layers}"


def mixed_name(case: tuple[str, str, int]) -> str:
    backend, layers, budget = case
    return f"mixed {budget} rows, {backend}, {layers}"


class Bench:
    """One model and one pool; executables by backend and bucket."""

    def __init__(self, sizes: Sizes, layers: str, floors: Floors, *, is_rehearsal: bool) -> None:
        loaded = random_model(is_rehearsal=is_rehearsal, layers=layers)
        self._config = loaded.config
        self._floors = floors
        self._parameters = Parameters(
            model=loaded.model, lookahead_head=lookahead_head(loaded.config.hidden_size, 0)
        )
        self._leaves = jax.tree.leaves(self._parameters)
        shape = StateShape(
            config=loaded.config, dtype=jnp.dtype("bfloat16"), kv_dtype=jnp.dtype("bfloat16"),
            num_blocks=1, block_size=16, max_num_seqs=max(sizes.sequences),
            chunk_size=max(sizes.budgets), max_model_len=max(sizes.contexts) + 16,
        )  # fmt: skip
        num_blocks = max(64, sizes.pool_bytes // shape.block_bytes)
        self._shape = replace(shape, num_blocks=num_blocks)
        self._state: Any = DeviceState.zeros(self._shape)
        self._executables: dict[str, Any] = {}

    def close(self) -> None:
        """Frees weights and pool."""
        for leaf in [*self._leaves, *jax.tree.leaves(self._state)]:
            leaf.delete()

    def decode(self, backend: str, num_seqs: int, context: int) -> Outcome:
        """One loop of so many decode rows, each at the end of its context."""
        return self._time(backend, num_seqs, [context] * num_seqs, 0, 0)

    def mixed(self, backend: str, budget: int) -> Outcome:
        """A chunk that starts at position 1,024 beside eight decode rows at 1,024."""
        num_decode = min(8, self._shape.max_num_seqs, budget // 2)
        start = min(1024, min(self._shape.max_model_len - budget, 1024))
        context = min(1024, self._shape.max_model_len - 16)
        return self._time(backend, budget, [context] * num_decode, budget - num_decode, start)

    def _time(
        self, backend: str, bucket: int, contexts: list[int], num_prompt: int, start: int
    ) -> Outcome:
        block_size = self._shape.block_size
        lengths = [*contexts, *([start + num_prompt] if num_prompt else [])]
        num_needed = sum(-(-length // block_size) for length in lengths)
        if num_needed > self._shape.num_blocks:
            return True, {"skipped": f"needs {num_needed} blocks, {self._shape.num_blocks} fit"}
        if backend not in self._executables:
            self._executables[backend] = Executables(self._shape, self._parameters, backend=backend)
        executables, rung = self._executables[backend], (LaunchKind.RECURRENT, max(2, bucket))
        layout = executables.layout(rung)
        buffer = np.zeros(layout.size, np.int32)
        self._fill(layout.host_views(buffer), contexts, num_prompt, start)
        packed = jax.device_put(buffer)
        started = time.perf_counter()
        executable = executables.get(rung)
        compile_seconds = time.perf_counter() - started

        def launch() -> None:
            self._state, signals = executable(self._leaves, self._state, packed)
            jax.block_until_ready(signals)

        seconds = median_seconds(launch)
        floor = self._floor(sum(lengths), len(contexts) + num_prompt)
        return True, {
            "ms": round(seconds * 1e3, 3),
            "floor, ms": round(floor * 1e3, 3),
            "share of floor": round(floor / seconds, 3),
            "compile, s": round(compile_seconds, 1),
        }

    def _fill(self, arrays: Any, contexts: list[int], num_prompt: int, start: int) -> None:
        shape, next_block = self._shape, 0
        arrays.decode_slots[:] = shape.max_num_seqs
        arrays.prompts.finish_slots[:] = shape.max_num_seqs

        def table(length: int) -> np.ndarray:
            nonlocal next_block
            num_blocks = -(-length // shape.block_size)
            next_block += num_blocks
            return np.arange(next_block - num_blocks, next_block)

        for row, context in enumerate(contexts):
            blocks = table(context)
            arrays.decode_slots[row] = row
            arrays.decode_depths[row] = 1
            arrays.decode_positions[row] = context - 1
            arrays.decode_tables[row, : len(blocks)] = blocks
        if num_prompt:
            blocks = table(start + num_prompt)
            arrays.prompts.first_positions[0] = start
            arrays.prompts.first_rows[0] = len(contexts)
            arrays.prompts.num_rows[0] = num_prompt
            arrays.prompts.is_embedded[0] = 1
            arrays.prompt_tables[0, : len(blocks)] = blocks

    def _floor(self, num_keys: int, num_rows: int) -> float:
        """Seconds that reading, or multiplying, takes at least."""
        config = self._config
        head = 2 * config.vocab_size * config.hidden_size
        num_layer_weights = config.num_parameters - head
        key_bytes = num_keys * self._shape.block_bytes / self._shape.block_size
        num_bytes = 2 * num_layer_weights + key_bytes
        num_operations = 2 * num_layer_weights * num_rows
        return max(
            num_bytes / self._floors.bytes_per_second,
            num_operations / self._floors.operations_per_second,
        )


def pool_bytes(device: Any) -> int:
    """Three fifths of what is free: the rest holds weights and temporaries."""
    stats = device.memory_stats()
    return int(0.6 * (stats["bytes_limit"] - stats["bytes_in_use"]))


def copy_rate(num_bytes: int) -> float:
    """Bytes read and written per second by a large elementwise step."""
    step = jax.jit(lambda values: values + 1, donate_argnums=0)
    values = jnp.zeros((num_bytes // 4,), jnp.int32)

    def launch() -> None:
        nonlocal values
        values = jax.block_until_ready(step(values))

    rate = 2 * num_bytes / median_seconds(launch)
    values.delete()
    return rate


def product_rate(size: int) -> float:
    """Operations per second of a square bfloat16 product."""
    step = jax.jit(lambda left, right: left @ right)
    left = jnp.ones((size, size), jnp.bfloat16)
    return 2 * size**3 / median_seconds(lambda: jax.block_until_ready(step(left, left)))


def median_seconds(launch: Callable[[], None], *, least: int = 10, most: float = 0.5) -> float:
    """Median of blocked launches: ten, or as many as half a second holds."""
    launch()
    launch()
    times: list[float] = []
    until = time.perf_counter() + most
    while len(times) < least or (time.perf_counter() < until and len(times) < 200):
        started = time.perf_counter()
        launch()
        times.append(time.perf_counter() - started)
        if len(times) >= 3 and time.perf_counter() > until + 4 * most:
            break
    return statistics.median(times)
