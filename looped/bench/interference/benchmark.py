"""`looped bench interference`: what prompts that arrive do to requests that decode, arm by arm.

The benchmark is a folder: `benchmark.json` says what is measured and on what, each point of the
sweep has a folder of launch logs, one a run, and every number is worked out from those. So a result
can be worked out again, by anyone, from the folder alone (`looped bench report`).
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped.errors import LoopedError, UsageError
from looped.measure.results_folder import BENCHMARK_FILE, make_folder, write_json
from looped.measure.violation import Violation
from looped.model_files import read_json
from looped.progress import progress_bars
from looped.record.launch_log import read_launch_log

from ..arms import ARMS
from ..engine_point import Point, WorkerPlan
from ..runs import Run
from .comparison import Comparison, compare
from .validity import MIN_PAIRS, MIN_PROCESSES

logger = logging.getLogger(__name__)

HEAD = {"benchmark": "interference", "schema": 1}
"""What its files are."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One point of the sweep with what came out."""

    point: Point
    runs: list[Run]
    comparison: Comparison


@dataclass(frozen=True)
class Benchmark:
    """A folder that was read back."""

    description: dict[str, Any]
    results: list[Result]
    is_complete: bool
    """Whether every point has all its runs; `results` has those that do."""

    @property
    def violations(self) -> list[Violation]:
        return [broken for result in self.results for broken in result.comparison.violations]

    def to_json(self) -> dict[str, Any]:
        return self.description | {
            "is_complete": self.is_complete,
            "is_valid": not self.violations,
            "points": [
                {"point": _brief(result.point), **result.comparison.to_json()}
                for result in self.results
            ],
        }


def rounds_of(num_pairs: int, num_processes: int) -> list[int]:
    """Rounds of each process; earlier ones get what does not divide.

    Raises:
        UsageError: too few for a valid benchmark.
    """
    if num_pairs < MIN_PAIRS or num_processes < MIN_PROCESSES:
        raise UsageError(
            f"a benchmark needs at least {MIN_PAIRS} pairs in {MIN_PROCESSES} processes, got "
            f"{num_pairs} in {num_processes}"
        )
    share, rest = divmod(num_pairs, num_processes)
    return [share + (process < rest) for process in range(num_processes)]


def run_benchmark(
    folder: Path,
    points: Sequence[Point],
    rounds: Sequence[int],
    description: dict[str, Any],
) -> list[Point]:
    """Makes the folder and all its launch logs. Processes run one after the other.

    Args:
        folder: to make.
        points: of the sweep, each with a name of its own.
        rounds: of each process.
        description: machine, date and command, for `benchmark.json`.

    Returns:
        The points with the exits that were replayed.

    Raises:
        UsageError: the folder exists, or two points are the same.
        LoopedError: a process failed.
    """
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise UsageError(f"points of a sweep must differ, got {', '.join(names)}")
    plan = {"rounds": list(rounds), "points": [point.to_json() for point in points]}
    make_folder(folder, HEAD | description | plan)
    with progress_bars() as progress:
        total = len(points) * sum(1 + len(ARMS) * count for count in rounds)
        task = progress.add_task("interference", total=total)
        return [
            measure_point(folder / point.name, point, rounds, lambda: progress.advance(task))
            for point in points
        ]


def profile_point(folder: Path, point: Point, profile_folder: Path) -> None:
    """Makes a trace of every arm, of runs that are not measured, in a process of their own."""
    profile_folder.mkdir(parents=True, exist_ok=True)
    plan = WorkerPlan(
        point=point, process=0, num_rounds=0, folder=folder, profile_folder=profile_folder
    )
    run_worker(plan, "profile", lambda: None)


def measure_point(
    folder: Path, point: Point, rounds: Sequence[int], on_line: Callable[[], None]
) -> Point:
    """Records the exits of a point if it replays some, and plays all its arms.

    Args:
        folder: to make, for the logs.
        point: what is measured.
        rounds: of each process.
        on_line: called when a process is warm, and after each of its runs.

    Returns:
        The point with the exits that were replayed.
    """
    folder.mkdir()
    logger.info("%s: %s", folder.name, point.workload)
    if point.needs_recording:
        plan = WorkerPlan(point=point, process=0, num_rounds=0, folder=folder, is_recording=True)
        run_worker(plan, "record", lambda: None)
        traces = json.loads((folder / "traces.json").read_text(encoding="utf-8"))
        point = point.with_traces(tuple(map(tuple, traces)))
    for process, num_rounds in enumerate(rounds):
        plan = WorkerPlan(point=point, process=process, num_rounds=num_rounds, folder=folder)
        run_worker(plan, f"process{process}", on_line)
    return point


def run_worker(plan: WorkerPlan, name: str, on_line: Callable[[], None]) -> None:
    """One process, from its plan to its end; LoopedError if it fails."""
    path = plan.folder / f"{name}.json"
    write_json(path, plan.to_json())
    # -P: a checkout's folders must not shadow the standard library's modules.
    command = [sys.executable, "-P", "-m", "looped.bench.interference.worker", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for _ in process.stdout:
                on_line()
        except BaseException:  # an interrupt of ours must not leave it running
            process.kill()
            raise
    if process.returncode:
        raise LoopedError(
            f"process {name} of {plan.folder} failed with exit code {process.returncode}"
        )


def read_benchmark(folder: Path) -> Benchmark:
    """Judges and measures a folder of logs.

    Raises:
        LoopedError: not such a benchmark's folder, or one in which no point is complete.
    """
    description = read_json(folder / BENCHMARK_FILE)
    found = {"benchmark": HEAD["benchmark"], "schema": None} | description
    if {name: found[name] for name in HEAD} != HEAD:
        raise LoopedError(
            f"{folder / BENCHMARK_FILE}: expected {_named(HEAD)}, got {_named(found)}"
        )
    results, unfinished = [], []
    for values in description.pop("points"):
        point = Point.from_json(values)
        runs = read_runs(folder / point.name)
        expected = sum(description["rounds"]) * len(ARMS)
        if len(runs) == expected:
            results.append(Result(point=point, runs=runs, comparison=compare(runs)))
        else:
            unfinished.append(
                f"{folder / point.name}: expected {expected} launch logs, got {len(runs)}; the "
                "benchmark was stopped, or it still runs"
            )
    if not results:
        raise LoopedError(unfinished[0])
    for words in unfinished:
        logger.warning("%s; left out", words)
    return Benchmark(description, results, is_complete=not unfinished)


def read_runs(folder: Path) -> list[Run]:
    """The runs of one point, in the order in which they were made."""
    logs = [read_launch_log(path) for path in sorted(folder.glob("process*-round*.jsonl.gz"))]
    runs = [Run.from_log(log.meta, log.events) for log in logs]
    return sorted(runs, key=lambda run: (run.place.process, run.place.position))


def _brief(point: Point) -> dict[str, Any]:
    """A point without its traces, which are in benchmark.json and in the logs."""
    return point.with_traces(()).to_json() | {"name": point.name}


def _named(head: dict[str, Any]) -> str:
    return f"benchmark {head['benchmark']!r} of schema {head.get('schema')!r}"
