"""The gate's probabilities of every token after every loop: what any threshold would have decided.

They are recorded at full depth. Under last-exited KV they are an approximation for a run at another
threshold, in which earlier tokens leave early and later ones see less of them; depths that a run
has had are in an exit trace.
"""

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float16, Int64

from looped.engine.observer import ForwardingObserver, LaunchObserver
from looped.engine.records import LaunchRecord
from looped.errors import LoopedError, UsageError
from looped.sched import Ladder, LaunchKind, Request, Scheduler, TokenOutput

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class GateRecord:
    """What the gate said of the tokens of several requests, or samples, in order of arrival."""

    probabilities: Float16[np.ndarray, "tokens P"]
    """sigmoid of the gate after loop r in column r - 1: the chance to leave then, for a token that
    has not left before. NaN for the first token of a request, which comes out of the prompt."""
    offsets: Int64[np.ndarray, " requests+1"]
    """Request i has the rows offsets[i] to offsets[i + 1] - 1, a row for every token."""
    meta: dict[str, Any]
    """`schema`, `num_loops` (P), `model` and `looped`, its version."""

    def of_request(self, index: int) -> Float16[np.ndarray, "tokens P"]:
        """The rows of one request."""
        return self.probabilities[self.offsets[index] : self.offsets[index + 1]]


def write_gate_record(path: Path, record: GateRecord) -> None:
    """Writes an `.npz` with the record's arrays and its meta as JSON, beside the name, and renames.

    Raises:
        OSError: it cannot be written.
    """
    staged = path.with_name(f".{path.name}.partial")
    with staged.open("wb") as file:
        np.savez(
            file,
            probabilities=record.probabilities,
            offsets=record.offsets,
            meta=np.array(json.dumps(record.meta)),
        )
    staged.replace(path)


def read_gate_record(path: Path) -> GateRecord:
    """Reads a record, of this schema.

    Raises:
        LoopedError: no such file, not a gate record, or another schema.
    """
    try:
        # Opened here: NumPy leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            meta = json.loads(str(arrays["meta"]))
            record = GateRecord(arrays["probabilities"], arrays["offsets"], meta)
    except FileNotFoundError:
        raise LoopedError(f"{path} cannot be read: there is no such file") from None
    except OSError as error:
        raise LoopedError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, BadZipFile, KeyError, ValueError, TypeError):
        # TypeError: a single array, .npy, is no context. NumPy's own advice would mislead.
        raise LoopedError(
            f"{path} is not a gate record: expected an .npz that --record-gates wrote"
        ) from None
    if meta.get("schema") != SCHEMA_VERSION:
        raise LoopedError(
            f"{path}: schema is {meta.get('schema')!r}, this version of looped reads "
            f"{SCHEMA_VERSION}"
        )
    return record


def check_gate_file(path: Path | None) -> None:
    """UsageError for a place that is taken or not an .npz, before anything slow is done."""
    if path is None:
        return
    if path.suffix != ".npz":
        raise UsageError(f"{path} must end in .npz, the form of a gate record")
    if path.exists():
        raise UsageError(f"{path} exists; choose another name for the gate record")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: {path.parent} is not a folder")


class GateRecorder(ForwardingObserver):
    """Keeps what the gate said of every token, which comes with the token.

    Args:
        path: of the record, written by `close`.
        observer: hears everything as well.
        model: name for the record's meta.
    """

    def __init__(self, path: Path, observer: LaunchObserver, model: str) -> None:
        super().__init__(observer)
        self.records_gates = True
        self._path = path
        self._model = model
        self._num_loops = 0
        self._arrays: list[Float16[np.ndarray, "tokens P"]] = []
        """By request, in order of arrival; empty until it is over."""
        self._unfinished: dict[Request, tuple[int, list[tuple[float, ...]]]] = {}
        """Place in that order, and by token from the second on what came after each loop."""
        self._is_closed = False
        self._lock = threading.Lock()
        """A server may write the record while its engine's thread is still in a launch."""

    def built(
        self,
        scheduler: Scheduler,
        ladders: dict[LaunchKind, Ladder],
        *,
        is_deterministic: bool,
        records_gates: bool,
    ) -> None:
        super().built(
            scheduler, ladders, is_deterministic=is_deterministic, records_gates=records_gates
        )
        self._num_loops = scheduler.config.num_planes

    def added(self, request: Request, scheduler: Scheduler) -> None:
        super().added(request, scheduler)
        with self._lock:
            if not self._is_closed:
                self._unfinished[request] = (len(self._arrays), [])
                self._arrays.append(self._array_of(0, []))

    def applied(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        super().applied(record, tokens, scheduler, num_compilations)
        with self._lock:
            for token in tokens:
                if token.gates and token.request in self._unfinished:  # a first token has none
                    self._unfinished[token.request][1].append(token.gates)

    def ended(self, request: Request, scheduler: Scheduler) -> None:
        super().ended(request, scheduler)
        with self._lock:
            if request in self._unfinished:
                self._finish(request)

    def close(self) -> None:
        """Writes the record, from any thread; of requests under way with the tokens that came."""
        with self._lock:
            self._is_closed = True
            for request in list(self._unfinished):
                self._finish(request)
        if not self._arrays:
            logger.warning("no request came, so there is no gate record %s", self._path)
            return
        meta = {
            "schema": SCHEMA_VERSION,
            "num_loops": self._num_loops,
            "model": self._model,
            "looped": version("looped"),
        }
        offsets = np.cumsum([0, *map(len, self._arrays)], dtype=np.int64)
        try:
            write_gate_record(self._path, GateRecord(np.concatenate(self._arrays), offsets, meta))
        except OSError as error:
            logger.error("the gate record %s was not written: %s", self._path, error)

    def _finish(self, request: Request) -> None:
        index, rows = self._unfinished.pop(request)
        # A server may be between a launch's tokens and their gates: one token more has come then.
        num_tokens = min(len(request.output_token_ids), 1 + len(rows))
        self._arrays[index] = self._array_of(num_tokens, rows)

    def _array_of(
        self, num_tokens: int, rows: list[tuple[float, ...]]
    ) -> Float16[np.ndarray, "n P"]:
        """Rows of the tokens that came, of which the first has none."""
        array = np.full((num_tokens, self._num_loops), np.nan, np.float16)
        if num_tokens > 1:
            array[1:] = rows
        return array


@contextmanager
def recording_gates(
    path: Path | None, observer: LaunchObserver, *, model: str
) -> Iterator[LaunchObserver]:
    """An observer that records gates while the block runs; the given one without a path.

    Args:
        path: of the `.npz`; UsageError if it is taken.
        observer: hears everything as well.
        model: name of the model, for the record's meta.
    """
    if path is None:
        yield observer
        return
    check_gate_file(path)
    recorder = GateRecorder(path, observer, model)
    try:
        yield recorder
    finally:
        recorder.close()
