"""How long the device stands idle between launches, at run_ahead 0, 1 and 2.

Fixed and live exits, 1, 16 and 64 sequences that decode side by side in the 1.4B shape, with XLA's
command buffers on and off. A flag of XLA counts for a whole process, so a child measures each of
the two: `python check_idle.py on`.

"Busy" is the union of what the profiler shows on the device's compute streams; "idle" is the rest,
from the first operation to the last. Gaps inside a launch, between two kernels, are short; those
between launches are counted as gaps above 10 us. Wall times are of other launches, not profiled.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import Outcome, Recorder

SEQUENCES = (16, 1, 64)
RUN_AHEAD = (0, 1, 2)
EXITS = {"live": 0.5, "fixed": 1.0}
"""Thresholds; with random weights a gate says about one half."""
BUFFERS = {"on": "", "off": "--xla_gpu_enable_command_buffer="}
"""Of XLA_FLAGS; XLA has them on by itself."""
LONG_GAP = 10e-6
NUM_WARM, NUM_TIMED, NUM_PROFILED = 12, 60, 40


@dataclass(frozen=True)
class Case:
    """One engine that decodes."""

    num_seqs: int
    exits: str
    run_ahead: int

    @property
    def name(self) -> str:
        return f"{self.num_seqs} sequences, {self.exits} exits, run_ahead {self.run_ahead}"


def cases(*, is_rehearsal: bool) -> list[Case]:
    sequences = (2,) if is_rehearsal else SEQUENCES
    return [
        Case(num_seqs, exits, run_ahead)
        for num_seqs in sequences
        for exits in EXITS
        for run_ahead in RUN_AHEAD
    ]


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    names = [case.name for case in cases(is_rehearsal=is_rehearsal)]
    recorder.plan([f"{name}, command buffers {buffers}" for buffers in BUFFERS for name in names])
    for buffers in BUFFERS:
        with child_of(buffers, is_rehearsal=is_rehearsal) as child:
            assert child.stdout is not None
            for name in names:
                recorder.check(f"{name}, command buffers {buffers}", next_outcome, child.stdout)


def child_of(buffers: str, *, is_rehearsal: bool) -> "subprocess.Popen[str]":
    """A process that measures every case, and prints a line of JSON for each."""
    command = [sys.executable, "-P", __file__, buffers]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {BUFFERS[buffers]}".strip()
    return subprocess.Popen(
        command + (["--rehearse"] if is_rehearsal else []),
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        text=True,
    )


def next_outcome(lines: Iterable[str]) -> Outcome:
    """What the child's next line says; RuntimeError if it has ended."""
    line = next(iter(lines), None)
    if line is None:
        raise RuntimeError("the process that measures has ended; see its output")
    values = json.loads(line)
    return values.pop("ok"), values


def idle_of(intervals: Iterable[tuple[float, float]]) -> tuple[float, float, float]:
    """Seconds from the first begin to the last end, those without any interval, and those among
    them in gaps above 10 us."""
    ordered = sorted(intervals)
    if not ordered:
        return 0.0, 0.0, 0.0
    first = reached = ordered[0][0]
    gaps = []
    for start, end in ordered:
        if start > reached:
            gaps.append(start - reached)
        reached = max(reached, end)
    return reached - first, sum(gaps), sum(gap for gap in gaps if gap > LONG_GAP)


def operations(folder: Path) -> Iterator[tuple[float, float]]:
    """Begin and end, in seconds, of what a profile shows on compute streams, or on XLA's threads of
    a CPU."""
    import jax

    (file,) = folder.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        is_gpu = plane.name.startswith("/device:GPU")
        for line in plane.lines:
            # Of a GPU other lines repeat its streams, by operation and by module.
            is_compute = line.name.startswith("Stream") and "Compute" in line.name
            is_busy = is_compute if is_gpu else line.name.startswith("tf_XLA")
            for event in line.events if is_busy else ():
                if event.duration_ns > 0:
                    start = event.start_ns * 1e-9
                    yield start, start + event.duration_ns * 1e-9


class Bench:
    """Engines of all cases on one model, one after the other, which share their executables."""

    def __init__(self, *, is_rehearsal: bool) -> None:
        from engines_here import random_model

        from looped.engine.llm_engine import LLMEngine
        from looped.engine.options import EngineConfig

        num_seqs = max(case.num_seqs for case in cases(is_rehearsal=is_rehearsal))
        # Prompts of one token, all in one launch: few executables are needed.
        config = EngineConfig(
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_seqs,
            prefill_chunk_size=1,
            prompt_shortcut=False,
            max_model_len=256,
            num_blocks=4 * 16 * num_seqs,
            kv_cache_dtype="float32" if is_rehearsal else "bfloat16",
        )
        model = random_model(is_rehearsal=is_rehearsal, layers="unrolled")
        self._engine = LLMEngine(model, config)

    def measure(self, case: Case) -> Outcome:
        """Steps of one case: some to compile and to settle, some timed, some profiled."""
        import jax

        self._engine.runner.delete_state()  # a card may not hold two pools
        engine = self._engine = self._engine.with_options(run_ahead=case.run_ahead)
        add_requests(engine, case)
        steps(engine, NUM_WARM)
        before, started = engine.stats(), time.perf_counter()
        steps(engine, NUM_TIMED)
        seconds, after = time.perf_counter() - started, engine.stats()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with tempfile.TemporaryDirectory() as folder:
            jax.profiler.start_trace(folder, profiler_options=options)
            steps(engine, NUM_PROFILED)
            jax.profiler.stop_trace()
            total, idle, between = idle_of(operations(Path(folder)))
        num_tokens = after.num_output_tokens - before.num_output_tokens
        num_compilations = engine.stats().num_compilations - before.num_compilations
        values: dict[str, Any] = {
            "ms a launch": round(1e3 * seconds / NUM_TIMED, 3),
            "tokens a launch": round(num_tokens / NUM_TIMED, 2),
            "tokens/s": round(num_tokens / seconds, 1),
            "compilations": num_compilations,
        }
        if not total:
            return False, values | {"error": "the profile shows no operation of the device"}
        values |= {
            "idle, share": round(idle / total, 3),
            "idle a launch, us": round(1e6 * idle / NUM_PROFILED, 1),
            "of it in gaps above 10 us": round(1e6 * between / NUM_PROFILED, 1),
        }
        return num_tokens > 0 and num_compilations == 0, values


def add_requests(engine: Any, case: Case) -> None:
    """Requests of one prompt token; runs until all have their first output token."""
    from looped.sampling_params import SamplingParams
    from looped.sched import ExitOptions

    # With min_loops 1 every row may leave in every launch: heads have one size.
    exits = ExitOptions(threshold=EXITS[case.exits], min_loops=1)
    params = SamplingParams(max_tokens=250, ignore_eos=True, exit=exits)
    for index in range(case.num_seqs):
        engine.add_request(str(index), [3 + index], params)
    num_tokens = 0
    while num_tokens < case.num_seqs:
        num_tokens += len(engine.step().tokens)


def steps(engine: Any, count: int) -> None:
    """So many launches go out, and as many are applied."""
    for _ in range(count):
        engine.step()


def main() -> None:
    is_rehearsal = "--rehearse" in sys.argv[2:]
    # Whatever else is printed is no result.
    results, sys.stdout = sys.stdout, sys.stderr
    bench = Bench(is_rehearsal=is_rehearsal)
    for case in cases(is_rehearsal=is_rehearsal):
        try:
            ok, values = bench.measure(case)
        except Exception as error:
            ok, values = False, {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"ok": ok, **values}), file=results, flush=True)


if __name__ == "__main__":
    main()
