"""A training run on disk: what was asked, metrics, checkpoints, and the finished model.

run.json            options and hashes of the inputs; once there is a checkpoint, a run is resumed
                    only with the same ones
metrics.jsonl       a line for each update
loss.png            the same as a picture, where there is matplotlib
checkpoints/STEP    Orbax; each appears complete or not at all, the last two are kept
model/              the finished model, a Hugging Face folder
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import jax
import orbax.checkpoint as ocp

from looped.errors import LoopedError, UsageError
from looped.measure.results_folder import check_writable
from looped.model_files import read_json

logger = logging.getLogger(__name__)

NUM_KEPT = 2
LOCK, STAGED_OPTIONS = ".lock", ".run.json.partial"


class RunFolder:
    """One run's folder, which no other process may train in until it is closed.

    Args:
        path: the folder, which has its options.
        lock: held until the folder is closed.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock
        for left in path.glob(".model.*"):  # by a process that was killed while it exported
            shutil.rmtree(left)
        self._checkpoints = ocp.CheckpointManager(
            (path / "checkpoints").absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=NUM_KEPT, enable_async_checkpointing=False
            ),
        )

    @classmethod
    def start(cls, path: Path, options: Mapping[str, Any], *, resume: bool) -> Self:
        """Makes a new run's folder, or opens one that was begun with the same options.

        A run that has no checkpoint yet is begun anew, with any options.

        Raises:
            UsageError: the folder exists and is not to be resumed, or holds another run.
            LoopedError: another process trains in it.
        """
        check_startable(path, resume=resume)
        path.mkdir(parents=True, exist_ok=True)
        lock = _locked(path / LOCK)
        try:
            _remember_options(path, json.loads(json.dumps(options)))
            return cls(path, lock)
        except BaseException:
            lock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._checkpoints.close()
        self._lock.close()

    @property
    def model(self) -> Path:
        """Where the finished model goes."""
        return self.path / "model"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def loss_plot(self) -> Path:
        return self.path / "loss.png"

    def save(self, step: int, state: Any) -> None:
        """Writes a checkpoint beside its place, renames it, and drops the third last."""
        self._checkpoints.save(step, args=ocp.args.StandardSave(state))
        self._checkpoints.wait_until_finished()

    def restore(self, state: Any) -> tuple[int, Any]:
        """Step and state of the last checkpoint; 0 and the given state if there is none."""
        step = self._checkpoints.latest_step()
        if step is None:
            return 0, state
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        try:
            restored = self._checkpoints.restore(step, args=ocp.args.StandardRestore(abstract))
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise LoopedError(
                f"{self.path}: checkpoint {step} cannot be read ({error}); remove it to go on from "
                "the one before"
            ) from error
        logger.info("going on from step %d of %s", step, self.path)
        return step, restored

    @contextmanager
    def metrics(self, num_steps: int) -> "Iterator[MetricsLog]":
        """The log, cut to its first `num_steps` updates, to be written on."""
        kept = list(read_metrics(self.metrics_file, num_steps)) if num_steps else []
        staged = self.path / ".metrics.jsonl.partial"
        staged.write_text("".join(kept), encoding="utf-8")
        staged.replace(self.metrics_file)
        with self.metrics_file.open("a", encoding="utf-8", buffering=1) as file:
            yield MetricsLog(file)


def check_startable(path: Path, *, resume: bool) -> None:
    """UsageError, before any work, for a folder in which no run can begin or go on."""
    if (path / "run.json").exists():
        if _has_checkpoint(path) and not resume:
            raise UsageError(f"{path} exists; pass --resume to go on, or choose another name")
    elif path.exists():
        if not path.is_dir():
            raise UsageError(f"{path} exists and is no folder; choose another name")
        # A process that was killed at its very beginning leaves no more than this.
        if {file.name for file in path.iterdir()} - {LOCK, STAGED_OPTIONS}:
            raise UsageError(f"{path} exists and is no training run; choose another name")
    check_writable(path)


def _has_checkpoint(path: Path) -> bool:
    """Whether there is something to go on from, or to lose."""
    checkpoints = (path / "checkpoints").glob("*")
    return any(file.name.isdigit() for file in checkpoints) or (path / "model").exists()


def _remember_options(path: Path, asked: dict[str, Any]) -> None:
    """Writes `run.json`, or UsageError if a run with other options has come to a checkpoint."""
    file = path / "run.json"
    begun = read_json(file) if file.exists() else {}
    if begun == asked:
        return
    if begun and _has_checkpoint(path):
        changed = sorted(
            name for name in begun.keys() | asked.keys() if begun.get(name) != asked.get(name)
        )
        raise UsageError(
            f"{path} was begun with other options: "
            + ", ".join(f"{name} {begun.get(name)!r}, now {asked.get(name)!r}" for name in changed)
            + "; give the same ones, or choose another name"
        )
    if begun:
        logger.info("%s has no checkpoint yet: begun anew, with other options", path)
    staged = path / STAGED_OPTIONS
    staged.write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")
    staged.replace(file)


def _locked(file: Path) -> IO[str]:
    """The file, held until it is closed or the process ends, however it ends."""
    lock = file.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise LoopedError(
            f"another process is training in {file.parent}; wait for it, or choose another name"
        ) from None
    return lock


class MetricsLog:
    """Appends a JSON object a line."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def flush(self) -> None:
        """On the disk, before a checkpoint that comes after these lines is."""
        self._file.flush()
        os.fsync(self._file.fileno())


def read_metrics(file: Path, num_steps: int) -> Iterator[str]:
    """Lines of the first updates; LoopedError if one is missing."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    if len(lines) < num_steps:
        raise LoopedError(f"{file} has {len(lines)} lines, and the checkpoint is of {num_steps}")
    yield from lines[:num_steps]
