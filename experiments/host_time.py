"""Host time per launch: what scheduling, packing and dispatch cost beside the device's work.

Question: how long is the host busy per launch, at 1 to 256 sequences, when the device call itself
costs nothing?
Method: the real LLMEngine on the tiny fixture's shapes with every executable replaced by a stub
that returns prepared arrays at once; N requests decode side by side under policy `separate`, every
token at full depth, so that a head follows every fourth launch, for all rows at once.
The parts of `LLMEngine.step` are timed by the marks of its observer over 200 launches after 50 of
warm-up, with Python's collector off; means over all launches, those with a head and those without,
in microseconds. "apply" is from a record's arrival on the host to the end of the step. Reading a
record is left out, as waiting is.

    python experiments/host_time.py

Result (2026-12-01, Intel Xeon with AVX-512, 2 shared cores, CPU only, no GPU; means in
microseconds, in the same minutes as the edition before, whose LM head was a launch of its own):

| sequences | schedule | pack + upload | dispatch | apply | in all | before, in all |
|---|---|---|---|---|---|---|
| 1 | 25 | 95 | 6 | 28 | 154 | 156 |
| 16 | 46 | 104 | 6 | 65 | 221 | 255 |
| 64 | 113 | 126 | 8 | 178 | 425 | 558 |
| 256 | 407 | 225 | 25 | 714 | 1371 | 1913 |

"before" has medians of passes alone, and neither token events nor what an observer is told.
"""

import argparse
import gc
import logging
from pathlib import Path
from statistics import mean
from time import perf_counter
from types import MethodType
from typing import Any

import jax
import numpy as np

from looped.engine.llm_engine import LLMEngine
from looped.engine.observer import LaunchObserver, Moment
from looped.engine.options import EngineConfig
from looped.loading import load_folder
from looped.programs.executables import Step
from looped.sampling_params import SamplingParams
from looped.sched import RowStatus

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "ouro-tiny"
NUM_WARM, NUM_TIMED = 50, 200
TOKEN_ID = 1


class Marks(LaunchObserver):
    """Keeps when the parts of the newest step began."""

    def __init__(self) -> None:
        self.times = [0.0] * len(Moment)

    def mark(self, moment: Moment) -> float:
        self.times[moment] = now = perf_counter()
        return now

    def seconds(self, start: Moment, end: Moment) -> float:
        return self.times[end] - self.times[start]


def stub_executables(engine: LLMEngine) -> None:
    """Every executable hands the state back and returns arrays made beforehand."""
    executables = engine.runner.executables
    shape = executables.shape
    records: dict[Step, Any] = {}
    ticket = jax.numpy.zeros(1, jax.numpy.int32)

    def record_of(step: Step) -> jax.Array:
        """What a head says whose rows have all left after the last loop."""
        _, record = jax.eval_shape(
            executables._run_of(step), engine._parameters, executables.state_type
        )
        values = np.zeros(record.shape, np.int32)
        values[0], values[1] = RowStatus.LEFT, shape.config.num_loops
        # Behind them the gates; then the token, its log-probability and whether it is finite.
        values[2 + shape.config.num_loops :][:3] = [[TOKEN_ID], [0], [1]]
        return jax.device_put(values)

    def get(_: Any, step: Step) -> Any:
        if step.kind.is_launched:
            return lambda leaves, state, packed: (state, ticket)
        if step not in records:
            records[step] = record_of(step)
        return lambda leaves, state: (state, records[step])

    def writer(_: Any, name: str) -> Any:
        return lambda state, packed: state

    executables.get = MethodType(get, executables)  # type: ignore[method-assign]
    executables.writer = MethodType(writer, executables)  # type: ignore[method-assign]


def decoding_engine(num_seqs: int, observer: LaunchObserver) -> LLMEngine:
    """An engine on stubs whose requests are all past their prompts."""
    config = EngineConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(256, num_seqs),
        max_model_len=1024,
        num_blocks=4 * 64 * num_seqs,
        policy="separate",
    )
    engine = LLMEngine(load_folder(FIXTURE), config, observer=observer)
    stub_executables(engine)
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    for index in range(num_seqs):
        engine.add_request(str(index), [1 + index % 500] * 8, params)
    while any(not request.output_token_ids for request in engine.scheduler.active_requests):
        engine.step()
    return engine


def time_parts(num_seqs: int) -> dict[str, float]:
    """Mean microseconds of each part of a step, over all launches of a decode steady state."""
    marks = Marks()
    engine = decoding_engine(num_seqs, marks)
    times: dict[str, list[float]] = {"schedule": [], "pack": [], "dispatch": [], "apply": []}
    gc.collect()
    gc.disable()
    for launch in range(NUM_WARM + NUM_TIMED):
        engine.step()
        ended = perf_counter()
        if launch >= NUM_WARM:
            times["schedule"].append(marks.seconds(Moment.SCHEDULING, Moment.PACKING))
            times["pack"].append(marks.seconds(Moment.PACKING, Moment.STARTING))
            times["dispatch"].append(marks.seconds(Moment.STARTING, Moment.DISPATCHED))
            times["apply"].append(ended - marks.times[Moment.COLLECTED])
    gc.enable()
    return {name: 1e6 * mean(values) for name, values in times.items()}


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
