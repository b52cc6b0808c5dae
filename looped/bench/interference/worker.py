"""One process of the interference benchmark: builds engines, plays the arms, writes launch logs.

    python -m looped.bench.interference.worker PLAN.json

Events are kept in memory while an arm runs and written when it is over. Standard output gets one
line a run, for the progress bar of the process that started this one.
"""

import json
import logging
import sys
from pathlib import Path

from looped.engine.events import LogEvent
from looped.engine.observer import LaunchRecorder
from looped.errors import LoopedError
from looped.loading import LoadedModel, load_folder
from looped.process.compilation_cache import use_compilation_cache
from looped.process.logs import configure_logging
from looped.record.launch_log import write_launch_log
from looped.record.profiling import profiling

from ..arms import ARMS, Arm, round_order
from ..driving import drive
from ..engine_point import Point, WorkerPlan
from ..engines import BenchEngines, CompilationCounter, collector_frozen, counting_compilations
from ..runs import DECODER, Place, Run
from ..targets import EngineTarget
from ..workload import Workload

logger = logging.getLogger(__name__)


class Bench:
    """The arms of one point, in this process.

    Args:
        point: what is measured.
        loaded: its model.
        compilations: counts them while arms run.
        compiles_ahead: what requests can reach; else the first play of an arm compiles what it
            needs.
    """

    def __init__(
        self,
        point: Point,
        loaded: LoadedModel,
        compilations: CompilationCounter,
        *,
        compiles_ahead: bool = True,
    ) -> None:
        self.point = point
        items = point.workload.items(has_decoders=True, has_prompts=True)
        lengths = [len(item.prompt_token_ids) for item in items] if compiles_ahead else None
        self._engines = BenchEngines(point, loaded, lengths)
        self._compilations = compilations

    def warm_up(self) -> None:
        """Compiles what the arms can reach, and plays each policy once with one prompt."""
        workload = self.point.workload.shortened()
        for arm in ARMS.values():
            self.play(arm, workload, Place(process=0, round=0, position=0))

    def play(
        self,
        arm: Arm,
        workload: Workload,
        place: Place,
        *,
        is_live: bool = False,
        profile_folder: Path | None = None,
    ) -> Run:
        """One run of an arm, with what it left behind."""
        events: list[LogEvent] = []
        is_live = is_live or self.point.exits == "live"
        threshold = self.point.exit_threshold if is_live else None
        with profiling(profile_folder, LaunchRecorder(events.append)) as observer:
            engine = self._engines.build(arm.policy, observer)
            before = self._compilations.count
            drive(EngineTarget(engine, live_threshold=threshold), workload, arm)
        return Run(
            arm=arm,
            place=place,
            options=self._engines.options(
                engine, exit_threshold=self.point.exit_threshold, exits=self.point.exits
            ),
            workload=workload,
            events=tuple(events),
            num_backend_compilations=self._compilations.count - before,
        )


def work(plan: WorkerPlan) -> None:
    """All rounds of a process, or the recording."""
    use_compilation_cache()
    point = plan.point
    loaded = load_folder(point.model, dtype=point.dtype, layers=point.layers)
    with counting_compilations() as compilations:
        bench = Bench(point, loaded, compilations)
        if plan.is_recording:
            record(bench, plan.folder)
        elif plan.profile_folder is not None:
            profile_arms(bench, plan.profile_folder)
        else:
            play_rounds(bench, plan)


def play_rounds(bench: Bench, plan: WorkerPlan) -> None:
    """All arms, round by round, each with a log of its own."""
    bench.warm_up()
    print("warm", flush=True)
    position = 0
    with collector_frozen():
        for index in range(plan.num_rounds):
            for name in round_order(plan.process, index):
                place = Place(process=plan.process, round=index, position=position)
                run = bench.play(ARMS[name], plan.point.workload, place)
                write_run(run, plan.folder)
                position += 1
                print(f"{name} {index}", flush=True)


def profile_arms(bench: Bench, folder: Path) -> None:
    """A trace of every arm, with one prompt."""
    bench.warm_up()
    place = Place(process=0, round=0, position=0)
    for arm in ARMS.values():
        workload = bench.point.workload.shortened()
        bench.play(arm, workload, place, profile_folder=folder / arm.name)


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
    write_launch_log(path, run.events, run.meta())


def main() -> None:
    configure_logging(logging.WARNING)
    try:
        work(WorkerPlan.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    except LoopedError as error:
        print(f"looped: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
