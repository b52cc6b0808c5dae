"""One process of the interference benchmark: builds engines, plays the arms, writes launch logs.

    python -m looped.bench.worker PLAN.json

Events are kept in memory while an arm runs and written when it is over. Every run has an engine of
its own, on executables that all share: the state is fresh, and nothing is compiled. What set-up
leaves behind is frozen out of Python's garbage collection, whose pauses would be measured.
Standard output gets one line a run, for the progress bar of the process that started this one.
"""

import gc
import json
import logging
import sys
from pathlib import Path

import jax

from looped.compilation_cache import use_compilation_cache
from looped.engine import LLMEngine
from looped.engine_config import EngineConfig
from looped.errors import LoopedError
from looped.executables import Executables
from looped.launch_events import LogEvent
from looped.launch_log import LaunchLogWriter
from looped.launch_observer import LaunchRecorder
from looped.loading import LoadedModel, load_folder
from looped.logs import configure_logging

from .arms import ARMS, Arm, round_order
from .driving import drive
from .plan import Point, WorkerPlan
from .runs import DECODER, Place, Run, RunOptions
from .targets import EngineTarget
from .workload import Workload

logger = logging.getLogger(__name__)

COMPILED = "/jax/core/compile/backend_compile_duration"


class Bench:
    """The engines of one point, in this process.

    Args:
        point: what is measured.
        loaded: its model.
    """

    def __init__(self, point: Point, loaded: LoadedModel) -> None:
        self.point = point
        self._loaded = loaded
        self._executables: Executables | None = None
        self._num_compilations = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)

    def warm_up(self) -> None:
        """Compiles what the arms can reach, and plays each policy once with one prompt."""
        workload = self.point.workload.shortened()
        for arm in ARMS.values():
            self.play(arm, workload, Place(process=0, round=0, position=0))
        # What set-up leaves behind is long-lived; going through it takes 0.1 s a time.
        gc.collect()
        gc.freeze()

    def play(self, arm: Arm, workload: Workload, place: Place, *, is_live: bool = False) -> Run:
        """One run of an arm, with what it left behind."""
        gc.collect()  # the last run's engine: a device may not hold two pools
        events: list[LogEvent] = []
        engine = self._engine(arm, LaunchRecorder(events.append))
        prompts = self.point.workload.items(has_decoders=True, has_prompts=True)
        engine.warm_up([len(item.prompt_token_ids) for item in prompts], has_scores=False)
        is_live = is_live or self.point.exits == "live"
        threshold = self.point.exit_threshold if is_live else None
        before = self._num_compilations
        drive(EngineTarget(engine, live_threshold=threshold), workload, arm)
        num_compilations = self._num_compilations - before
        return Run(
            arm=arm,
            place=place,
            options=self._options(engine),
            workload=workload,
            events=tuple(events),
            num_backend_compilations=num_compilations,
        )

    def _engine(self, arm: Arm, recorder: LaunchRecorder) -> LLMEngine:
        point = self.point
        config = EngineConfig(
            policy=arm.policy,
            max_num_seqs=point.max_num_seqs,
            max_num_batched_tokens=point.budget,
            prefill_chunk_size=point.chunk_size,
            max_model_len=point.max_model_len,
            block_size=point.block_size,
            num_blocks=point.num_blocks,
            kv_cache_dtype=point.kv_cache_dtype,
            attention_backend=point.attention_backend,
            prefix_caching=False,
        )
        engine = LLMEngine(self._loaded, config, executables=self._executables, observer=recorder)
        self._executables = engine.runner.executables
        return engine

    def _options(self, engine: LLMEngine) -> RunOptions:
        point, shape = self.point, engine.runner.executables.shape
        return RunOptions(
            num_planes=point.num_planes,
            max_num_batched_tokens=point.budget,
            max_num_seqs=point.max_num_seqs,
            prefill_chunk_size=point.chunk_size,
            block_size=point.block_size,
            num_blocks=shape.num_blocks,
            dtype=self._loaded.dtype,
            kv_dtype=str(shape.kv_dtype),
            attention_backend=engine.config.attention_backend,
            exit_threshold=point.exit_threshold,
            exits=point.exits,
            min_coda_batch_size=engine.config.min_coda_batch_size,
            model=point.model,
        )

    def _count(self, event: str, duration_secs: float, **_: str | int) -> None:
        self._num_compilations += event == COMPILED


def work(plan: WorkerPlan) -> None:
    """All rounds of a process, or the recording."""
    use_compilation_cache()
    loaded = load_folder(plan.point.model, dtype=plan.point.dtype)
    bench = Bench(plan.point, loaded)
    if plan.is_recording:
        record(bench, plan.folder)
        return
    bench.warm_up()
    print("warm", flush=True)
    position = 0
    for index in range(plan.num_rounds):
        for name in round_order(plan.process, index):
            place = Place(process=plan.process, round=index, position=position)
            run = bench.play(ARMS[name], plan.point.workload, place)
            write_run(run, plan.folder)
            position += 1
            print(f"{name} {index}", flush=True)


def record(bench: Bench, folder: Path) -> None:
    """Lets the decoders decide their exits, alone, and writes those as traces.json."""
    place = Place(process=0, round=0, position=0)
    run = bench.play(ARMS["D0"], bench.point.workload, place, is_live=True)
    traces = [
        [visible.token.exit_depth for visible in run.timeline.tokens[name]]
        for name in run.names(DECODER)
    ]
    (folder / "traces.json").write_text(json.dumps(traces) + "\n", encoding="utf-8")


def write_run(run: Run, folder: Path) -> None:
    """A run as a launch log."""
    place = run.place
    path = folder / f"process{place.process}-round{place.round}-{run.arm.name}.jsonl.gz"
    writer = LaunchLogWriter(path, run.meta())
    for event in run.events:
        writer.write(event)
    writer.close()
    if writer.failure is not None:
        raise writer.failure


def main() -> None:
    configure_logging(logging.WARNING)
    try:
        work(WorkerPlan.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    except LoopedError as error:
        print(f"looped: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
