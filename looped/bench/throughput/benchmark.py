"""`looped bench throughput`: how much an engine serves offline, and what early exit adds to it.

Thresholds take turns in one process, and every number of one threshold stands beside that of
threshold 1 in the same round.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from looped.engine.events import LogEvent
from looped.engine.observer import LaunchRecorder
from looped.errors import UsageError
from looped.loading import LoadedModel, load_folder
from looped.measure.flop_bound import ParameterCounts
from looped.progress import progress_bars
from looped.record.launch_log import write_launch_log
from looped.record.profiling import profiling

from ..engines import BenchEngines, CompilationCounter, collector_frozen, counting_compilations
from ..runs import Place
from ..targets import EngineTarget
from .closed_loop import ClosedLoop, drive_closed_loop
from .point import ThroughputPoint
from .rules import MIN_ROUNDS
from .runs import BASE_THRESHOLD, ThroughputRun
from .summary import ThroughputResult, summarise_point

logger = logging.getLogger(__name__)

HEAD = {"benchmark": "throughput", "schema": 1}
"""What its files are."""


def round_of(thresholds: Sequence[float], round_index: int) -> Sequence[float]:
    """Every other round backwards, so that any two thresholds alternate as ABBA."""
    return thresholds if round_index % 2 == 0 else thresholds[::-1]


def check_plan(points: Sequence[ThroughputPoint], num_rounds: int) -> None:
    """UsageError for what cannot become a valid benchmark, before a model is loaded."""
    for point in points:
        point.engine_config(point.policy)
    if num_rounds < MIN_ROUNDS:
        raise UsageError(f"a benchmark needs at least {MIN_ROUNDS} rounds, got {num_rounds}")
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise UsageError(f"points of a sweep must differ, got {', '.join(names)}")


class ThroughputBenchmark:
    """All points of a sweep, of one model, type and form of layers, in this process.

    Args:
        points: what is measured.
        num_rounds: each plays every threshold once.
        folder: that exists, for the launch log of every run; None keeps none.

    Raises:
        UsageError: see `check_plan`.
    """

    def __init__(
        self, points: Sequence[ThroughputPoint], num_rounds: int, *, folder: Path | None
    ) -> None:
        check_plan(points, num_rounds)
        self.results: list[ThroughputResult] = []
        self._points = points
        self._num_rounds = num_rounds
        self._folder = folder
        self._benches: list[ThroughputBench] = []

    def measure(self) -> Iterator[ThroughputResult]:
        """Plays all rounds of one point after the other; a result when its logs are written.

        Raises:
            LoopedError: the model is not sound.
        """
        first = self._points[0]
        loaded = load_folder(first.model, dtype=first.dtype, layers=first.layers)
        with (
            counting_compilations() as compilations,
            _progress(self._points, self._num_rounds) as advance,
        ):
            for point in self._points:
                bench = ThroughputBench(point, loaded, compilations)
                self._benches.append(bench)
                runs = bench.play_rounds(self._num_rounds, advance)
                if self._folder is not None:
                    write_logs(self._folder / point.name, runs)
                self.results.append(summarise_point(point, runs))
                yield self.results[-1]

    def profile(self, folder: Path) -> None:
        """A trace of every threshold at every point, of short runs that are not measured."""
        for bench in self._benches:
            bench.profile(folder / bench.point.name)

    def to_json(self, description: dict[str, Any]) -> dict[str, Any]:
        """What is measured so far, as one object."""
        return {
            **description,
            "is_complete": len(self.results) == len(self._points),
            "is_valid": all(result.is_valid for result in self.results),
            "points": [result.to_json() for result in self.results],
        }


class ThroughputBench:
    """The thresholds of one point, in this process.

    Args:
        point: what is measured.
        loaded: its model.
        compilations: counts them while a loop is played.
    """

    def __init__(
        self, point: ThroughputPoint, loaded: LoadedModel, compilations: CompilationCounter
    ) -> None:
        self.point = point
        lengths = [point.loop.prompt_tokens] * point.loop.num_requests
        self._engines = BenchEngines(point, loaded, lengths)
        self._compilations = compilations
        self._parameters = ParameterCounts.of(loaded.config)

    def play_rounds(self, num_rounds: int, on_run: Callable[[], None]) -> list[ThroughputRun]:
        """Warms up, with a short run of every threshold, then plays all rounds."""
        logger.info("%s: %s", self.point.name, self.point.loop)
        warm = Place(process=0, round=0, position=0)
        for threshold in self.point.thresholds:
            self.play(self.point.loop.shortened().at(threshold), warm)
        runs: list[ThroughputRun] = []
        with collector_frozen():
            for index in range(num_rounds):
                for threshold in round_of(self.point.thresholds, index):
                    place = Place(process=0, round=index, position=len(runs))
                    runs.append(self.play(self.point.loop.at(threshold), place))
                    on_run()
        return runs

    def profile(self, folder: Path) -> None:
        """A trace of a short run of every threshold, which is not measured."""
        place = Place(process=0, round=0, position=0)
        for threshold in self.point.thresholds:
            loop = self.point.loop.shortened().at(threshold)
            self.play(loop, place, profile_folder=folder / f"threshold{threshold:g}")

    def play(
        self, loop: ClosedLoop, place: Place, *, profile_folder: Path | None = None
    ) -> ThroughputRun:
        """One closed loop on a fresh engine, with what it left behind."""
        events: list[LogEvent] = []
        with profiling(profile_folder, LaunchRecorder(events.append)) as observer:
            engine = self._engines.build(self.point.policy, observer)
            before = self._compilations.count
            drive_closed_loop(EngineTarget(engine), loop)
        is_live = loop.exit_threshold < BASE_THRESHOLD
        return ThroughputRun(
            place=place,
            options=self._engines.options(
                engine,
                exit_threshold=loop.exit_threshold,
                exits="live" if is_live else "full",
            ),
            loop=loop,
            parameters=self._parameters,
            events=tuple(events),
            num_backend_compilations=self._compilations.count - before,
        )


def write_logs(folder: Path, runs: Sequence[ThroughputRun]) -> None:
    """A launch log of every run, for `looped plot`."""
    folder.mkdir()
    for run in runs:
        name = f"round{run.place.round}-threshold{run.threshold:g}.jsonl.gz"
        write_launch_log(folder / name, run.events, run.meta())


@contextmanager
def _progress(points: Sequence[ThroughputPoint], num_rounds: int) -> Iterator[Callable[[], None]]:
    """A bar over all runs, and what advances it."""
    with progress_bars() as progress:
        total = sum(num_rounds * len(point.thresholds) for point in points)
        task = progress.add_task("throughput", total=total)
        yield lambda: progress.advance(task)
