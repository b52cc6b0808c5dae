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

from looped.config import read_json
from looped.errors import LoopedError, UsageError
from looped.launch_log import read_launch_log
from looped.progress import progress_bars

from .arms import ARMS
from .comparison import Comparison, compare
from .plan import Point, WorkerPlan
from .runs import Run
from .validity import MIN_PAIRS, MIN_PROCESSES

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
BENCHMARK_FILE, RESULT_FILE, TABLE_FILE = "benchmark.json", "result.json", "result.md"


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

    @property
    def is_valid(self) -> bool:
        return all(result.comparison.is_valid for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return self.description | {
            "is_valid": self.is_valid,
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
    *,
    profile_folder: Path | None = None,
) -> None:
    """Makes the folder and all its launch logs. Processes run one after the other.

    Args:
        folder: to make.
        points: of the sweep, each with a name of its own.
        rounds: of each process.
        description: machine, date and command, for `benchmark.json`.
        profile_folder: for a trace of every arm at every point, made in processes of their own
            after all others; None makes none.

    Raises:
        UsageError: the folder exists, or two points are the same.
        LoopedError: a process failed.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists; choose another name for the results")
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise UsageError(f"points of a sweep must differ, got {', '.join(names)}")
    folder.mkdir(parents=True)
    benchmark = {
        "schema": SCHEMA_VERSION,
        **description,
        "rounds": list(rounds),
        "points": [point.to_json() for point in points],
    }
    _write_json(folder / BENCHMARK_FILE, benchmark)
    with progress_bars() as progress:
        total = len(points) * sum(1 + len(ARMS) * count for count in rounds)
        task = progress.add_task("interference", total=total)
        measured = [
            measure_point(folder / point.name, point, rounds, lambda: progress.advance(task))
            for point in points
        ]
    if profile_folder is not None:
        for point in measured:
            profile_point(folder / point.name, point, profile_folder / point.name)


def profile_point(folder: Path, point: Point, profile_folder: Path) -> None:
    """Makes a trace of every arm, of runs that are not measured."""
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
    _write_json(path, plan.to_json())
    # -P: a checkout's folders must not shadow the standard library's modules.
    command = [sys.executable, "-P", "-m", "looped.bench.worker", str(path)]
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
        LoopedError: not a benchmark's folder, or one that is not complete.
    """
    description = read_json(folder / BENCHMARK_FILE)
    if description.get("schema") != SCHEMA_VERSION:
        raise LoopedError(
            f"{folder / BENCHMARK_FILE}: schema is {description.get('schema')!r}, this version of "
            f"looped reads {SCHEMA_VERSION}"
        )
    results = []
    for values in description.pop("points"):
        point = Point.from_json(values)
        runs = read_runs(folder / point.name)
        expected = sum(description["rounds"]) * len(ARMS)
        if len(runs) != expected:
            raise LoopedError(
                f"{folder / point.name}: expected {expected} launch logs, got {len(runs)}; the "
                "benchmark was stopped, or it still runs"
            )
        results.append(Result(point=point, runs=runs, comparison=compare(runs)))
    return Benchmark(description, results)


def read_runs(folder: Path) -> list[Run]:
    """The runs of one point, in the order in which they were made."""
    logs = [read_launch_log(path) for path in sorted(folder.glob("process*-round*.jsonl.gz"))]
    runs = [Run.from_log(log.meta, log.events) for log in logs]
    return sorted(runs, key=lambda run: (run.place.process, run.place.position))


def write_result(folder: Path, benchmark: Benchmark, table: str) -> None:
    """Puts `result.json` and `result.md` beside the logs, in place of earlier ones."""
    _write_json(folder / RESULT_FILE, benchmark.to_json())
    (folder / TABLE_FILE).write_text(table, encoding="utf-8")


def _brief(point: Point) -> dict[str, Any]:
    """A point without its traces, which are in benchmark.json and in the logs."""
    return point.with_traces(()).to_json() | {"name": point.name}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
