"""Host time per launch: what scheduling, packing and dispatch cost beside the device's work.

Question: how long is the host busy per launch, at 1 to 256 sequences, when the device call itself
costs nothing?
Method: the real LLMEngine on the tiny fixture's shapes with every executable replaced by a stub
that returns prepared arrays at once; N requests decode side by side under policy `separate`. The
parts of `LLMEngine.step` are timed over 200 launches after 50 of warm-up; medians, microseconds.
Fixed depth, so that no launch waits for a readback but the codas.

    python experiments/host_time.py

Result (2026-11-29, 2 shared cores, CPU only, no GPU; medians in microseconds):

| sequences | schedule | pack + upload | dispatch | apply | in all |
|---|---|---|---|---|---|
| 1 | 22 | 109 | 12 | 6 | 148 |
| 16 | 61 | 130 | 26 | 15 | 232 |
| 64 | 176 | 172 | 71 | 46 | 465 |
| 256 | 654 | 361 | 301 | 168 | 1484 |
"""

import argparse
import logging
from pathlib import Path
from statistics import median
from time import perf_counter
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp

from looped.engine.llm_engine import LLMEngine
from looped.engine.options import EngineConfig
from looped.loading import load_folder
from looped.sampling_params import SamplingParams
from looped.sched import LaunchKind

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "ouro-tiny"
NUM_WARM, NUM_TIMED = 50, 200


def stub_executables(engine: LLMEngine) -> None:
    """Every executable hands the state back and returns arrays made beforehand."""
    outputs: dict[Any, jax.Array] = {}

    def get(executables: Any, rung: Any) -> Any:
        kind, rows = rung
        if rung not in outputs:
            shape = (3, rows) if kind is LaunchKind.CODA else (min(rows, 256),)
            dtype = jnp.int32 if kind is LaunchKind.CODA else jnp.float32
            outputs[rung] = jnp.ones(shape, dtype)
        if kind is LaunchKind.PREFILL:
            return lambda leaves, state, packed: (state, None)
        return lambda leaves, state, packed: (state, outputs[rung])

    engine.runner.executables.get = MethodType(get, engine.runner.executables)  # type: ignore[method-assign]


def time_parts(num_seqs: int) -> dict[str, float]:
    """Median microseconds of each part of a step, over all launches of a decode steady state."""
    config = EngineConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(256, num_seqs),
        max_model_len=1024,
        num_blocks=4 * 64 * num_seqs,
    )
    engine = LLMEngine(load_folder(FIXTURE), config)
    stub_executables(engine)
    for index in range(num_seqs):
        engine.add_request(str(index), [1 + index % 500] * 8, SamplingParams(max_tokens=1000))
    while any(not request.is_prompt_complete for request in engine.scheduler.active_requests):
        engine.step()
    times: dict[str, list[float]] = {"schedule": [], "pack": [], "dispatch": [], "apply": []}
    for launch in range(NUM_WARM + NUM_TIMED):
        marks = [perf_counter()]
        batch = engine.scheduler.schedule()
        assert batch is not None
        marks.append(perf_counter())
        packed = engine.runner.pack(batch)
        marks.append(perf_counter())
        launched = engine.dispatch(packed)
        marks.append(perf_counter())
        result = engine.runner.collect(launched)
        collected = perf_counter()
        engine.scheduler.apply(batch, result)
        if launch >= NUM_WARM:
            for name, start, end in zip(times, marks, marks[1:], strict=False):
                times[name].append(1e6 * (end - start))
            times["apply"].append(1e6 * (perf_counter() - collected))
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64, 256])
    logging.disable(logging.WARNING)
    print("| sequences | schedule | pack + upload | dispatch | apply | in all |")
    print("|---|---|---|---|---|---|")
    for num_seqs in parser.parse_args().sequences:
        parts = time_parts(num_seqs)
        cells = " | ".join(f"{value:.0f}" for value in parts.values())
        print(f"| {num_seqs} | {cells} | {sum(parts.values()):.0f} |")


if __name__ == "__main__":
    main()
