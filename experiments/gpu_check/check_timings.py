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

from looped.device.request_table import RowOptions, RowProgress, column
from looped.device.state import DeviceState, StateShape
from looped.measure.flop_bound import ParameterCounts
from looped.programs.executables import Executables, Step
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.sched import LaunchKind

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
    cases = {
        layers: in_order_of_value(backends, sizes, is_complete=layers == "unrolled")
        for layers in (("unrolled",) if is_rehearsal else ("unrolled", "scanned"))
    }
    names = [f"{case.name}, {layers}" for layers, listed in cases.items() for case in listed]
    recorder.plan(["floors", *names])
    floors = Floors(float("nan"), float("nan"))

    def measure_floors() -> Outcome:
        nonlocal floors
        floors = Floors(copy_rate(sizes.copy_bytes), product_rate(sizes.matrix))
        return True, {
            "copy, GB/s": round(floors.bytes_per_second / 1e9),
            "bfloat16 products, TFLOP/s": round(floors.operations_per_second / 1e12, 1),
        }

    recorder.check("floors", measure_floors)
    for layers, listed in cases.items():
        bench = Bench(sizes, layers, floors, is_rehearsal=is_rehearsal)
        for case in listed:
            recorder.check(f"{case.name}, {layers}", bench.time, case)
        bench.close()


@dataclass(frozen=True)
class Case:
    """One launch to time: decode rows at the end of their contexts, and a chunk of a prompt."""

    backend: str
    num_decode: int
    context: int
    num_prompt: int = 0

    @property
    def name(self) -> str:
        kind = f"mixed {self.num_decode + self.num_prompt} rows, {self.num_decode} decode"
        kind = kind if self.num_prompt else f"decode {self.num_decode}"
        return f"{kind} x {self.context}, {self.backend}"


def in_order_of_value(backends: list[str], sizes: Sizes, *, is_complete: bool) -> list[Case]:
    """A cell of each kind under every backend first; the others, if wanted, backend by backend."""
    decodes = [(num, context) for num in sizes.sequences for context in sizes.contexts]
    key_decode = decodes[len(decodes) // 3]
    key_budget = sizes.budgets[len(sizes.budgets) // 3]
    context = min(1024, sizes.contexts[-1])

    def mixed(backend: str, budget: int) -> Case:
        num_decode = min(8, sizes.sequences[-1])
        return Case(backend, num_decode, context, budget - num_decode)

    cases = [
        case
        for backend in backends
        for case in (Case(backend, *key_decode), mixed(backend, key_budget))
    ]
    if is_complete:
        for backend in backends:
            cases += [Case(backend, *cell) for cell in decodes if cell != key_decode]
            cases += [mixed(backend, budget) for budget in sizes.budgets if budget != key_budget]
    return cases


class Bench:
    """One model and one pool; executables by backend and bucket."""

    def __init__(self, sizes: Sizes, layers: str, floors: Floors, *, is_rehearsal: bool) -> None:
        loaded = random_model(is_rehearsal=is_rehearsal, layers=layers)
        self._config = loaded.config
        self._floors = floors
        self._parameters = Parameters(
            model=loaded.model, lookahead=LookaheadHeads.create(loaded.config, seed=0)
        )
        self._leaves = jax.tree.leaves(self._parameters)
        shape = StateShape(
            config=loaded.config, dtype=jnp.dtype("bfloat16"), kv_dtype=jnp.dtype("bfloat16"),
            num_blocks=1, block_size=16, max_num_seqs=max(sizes.sequences) + 1,
            chunk_size=max(sizes.budgets), max_model_len=max(sizes.contexts) + max(sizes.budgets),
        )  # fmt: skip
        num_blocks = max(64, sizes.pool_bytes // shape.block_bytes)
        self._shape = replace(shape, num_blocks=num_blocks)
        self._state: Any = DeviceState.zeros(self._shape)
        self._executables: dict[str, Any] = {}

    def close(self) -> None:
        """Frees weights and pool."""
        for leaf in [*self._leaves, *jax.tree.leaves(self._state)]:
            leaf.delete()

    def time(self, case: Case) -> Outcome:
        """One pass; a failure leaves a fresh state for the next case."""
        try:
            return self._time(case)
        except Exception:
            self._state = DeviceState.zeros(self._shape)  # the old one was donated
            raise

    def _time(self, case: Case) -> Outcome:
        backend, num_prompt, start = case.backend, case.num_prompt, case.context
        contexts, bucket = [case.context] * case.num_decode, case.num_decode + num_prompt
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
        executable = executables.get(Step(*rung))
        compile_seconds = time.perf_counter() - started

        def launch() -> None:
            self._state, ticket = executable(self._leaves, self._state, packed)
            jax.block_until_ready(ticket)

        seconds = median_seconds(launch)
        reading, multiplying = self._floor_seconds(sum(lengths), len(contexts) + num_prompt)
        return True, {
            "ms": round(seconds * 1e3, 3),
            "share of the bandwidth floor": round(reading / seconds, 3),
            "share of the arithmetic floor": round(multiplying / seconds, 3),
            "compile, s": round(compile_seconds, 1),
        }

    def _fill(self, arrays: Any, contexts: list[int], num_prompt: int, start: int) -> None:
        """Fills the upload, and the request table of the rows that it names.

        A row goes one loop deeper in each launch. All planes of a request have the same blocks
        here, so a launch reads the same keys wherever its rows stand.
        """
        shape, next_block = self._shape, 0
        lengths = contexts + ([start + num_prompt] if num_prompt else [])
        tables = np.zeros(self._state.block_tables.shape, np.int32)
        progress = np.zeros(self._state.progress.shape, np.int32)
        options = np.zeros(self._state.options.shape, np.int32)
        for slot, length in enumerate(lengths):
            num_blocks = -(-length // shape.block_size)
            tables[slot, :, :num_blocks] = np.arange(next_block, next_block + num_blocks)
            next_block += num_blocks
            progress[slot, column(RowProgress, "position")] = length - 1
            progress[slot, column(RowProgress, "depth")] = 1
            options[slot, column(RowOptions, "threshold")] = np.float32(1.0).view(np.int32)
            options[slot, column(RowOptions, "max_loops")] = shape.config.num_loops
        self._state = replace(
            self._state,
            block_tables=jax.device_put(tables),
            progress=jax.device_put(progress),
            options=jax.device_put(options),
        )
        no_slot = shape.max_num_seqs
        arrays.decode_slots[:] = no_slot
        arrays.decode_slots[: len(contexts)] = np.arange(len(contexts))
        arrays.head_slots[:] = no_slot
        arrays.prompts.finish_slots[:] = no_slot
        if num_prompt:
            arrays.prompts.first_positions[0] = start
            arrays.prompts.first_rows[0] = len(contexts)
            arrays.prompts.num_rows[0] = num_prompt
            arrays.prompts.slots[0] = len(contexts)
            arrays.prompts.depths[0] = 1

    def _floor_seconds(self, num_keys: int, num_rows: int) -> tuple[float, float]:
        """What reading weights and keys takes at least, and what the products take."""
        num_weights = ParameterCounts.of(self._config).recurrent
        key_bytes = num_keys * self._shape.block_bytes / self._shape.block_size
        reading = (2 * num_weights + key_bytes) / self._floors.bytes_per_second
        return reading, 2 * num_weights * num_rows / self._floors.operations_per_second


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
