"""Exit depths of a run, written as it goes: a file that `--exit-trace` reads back.

A JSON list with one list of integers per request, or per sample, in order of arrival. The file is
a whole one after every addition, so a killed process leaves a shorter list, not a broken one.
"""

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from looped.engine.observer import ForwardingObserver, LaunchObserver
from looped.errors import UsageError
from looped.sched import Request, Scheduler

logger = logging.getLogger(__name__)

LIST_END = b"\n]\n"


def check_exit_trace_file(path: Path | None) -> None:
    """UsageError for a place that is taken or has no folder, before anything slow is done."""
    if path is None:
        return
    if path.exists():
        raise UsageError(f"{path} exists; choose another name for the exit trace")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: {path.parent} is not a folder")


class ExitTraceWriter:
    """A list of lists in a new file, which is made with the first of them.

    Raises:
        UsageError: there is a file already, or no folder for it.
    """

    def __init__(self, path: Path) -> None:
        check_exit_trace_file(path)
        self._path = path
        self._file: BinaryIO | None = None
        self.failure: OSError | None = None
        """Why it gave up: a full disk ends the file, not the requests."""

    def add(self, exit_depths: Sequence[int]) -> None:
        """Writes the next list; does nothing after a failure, which is logged once."""
        if self.failure is not None:
            return
        try:
            self._append(json.dumps(list(exit_depths)).encode())
        except OSError as error:
            self._fail(error)

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("x+b")
            self._file.write(b"[\n" + line + LIST_END)
        else:
            # One write over the end of the list: no moment at which the file is not one.
            self._file.seek(-len(LIST_END), os.SEEK_END)
            self._file.write(b",\n" + line + LIST_END)
        self._file.flush()

    def close(self) -> None:
        """Ends the file; says so if there is none."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:  # what a full disk did not take is still in the buffer
                self._fail(error)
        elif self.failure is None:
            logger.warning("no request came, so there is no exit trace %s", self._path)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            logger.error("the exit trace %s ends here: %s", self._path, error)
        self.failure = error


class ExitTraceRecorder(ForwardingObserver):
    """Writes the exit depths of every request that it hears of, in order of arrival.

    A request that ends before an earlier one waits for it. One that is aborted, or fails, has the
    depths of the tokens that came.
    """

    def __init__(self, writer: ExitTraceWriter, observer: LaunchObserver) -> None:
        super().__init__(observer)
        self._writer = writer
        self._unwritten: deque[Request] = deque()
        self._is_closed = False
        self._lock = threading.Lock()
        """A server may close the file while its engine's thread is still in a launch."""

    def added(self, request: Request, scheduler: Scheduler) -> None:
        super().added(request, scheduler)
        with self._lock:
            if not self._is_closed:
                self._unwritten.append(request)

    def ended(self, request: Request, scheduler: Scheduler) -> None:
        super().ended(request, scheduler)
        with self._lock:
            while self._unwritten and self._unwritten[0].finish_reason is not None:
                self._writer.add(self._unwritten.popleft().exit_depths)

    def close(self) -> None:
        """Writes what is left, of requests under way as far as they have come."""
        with self._lock:
            self._is_closed = True
            while self._unwritten:
                self._writer.add(self._unwritten.popleft().exit_depths)
            self._writer.close()


@contextmanager
def recording_exits(path: Path | None, observer: LaunchObserver) -> Iterator[LaunchObserver]:
    """An observer that writes exit depths while the block runs; the given one without a path."""
    if path is None:
        yield observer
        return
    recorder = ExitTraceRecorder(ExitTraceWriter(path), observer)
    try:
        yield recorder
    finally:
        recorder.close()


def read_exit_traces(path: Path) -> list[tuple[int, ...]]:
    """Reads recorded exit depths: a JSON list with one list of integers per prompt, in order.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    try:
        traces = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from None
    is_right = isinstance(traces, list) and all(
        isinstance(trace, list) and all(type(depth) is int for depth in trace) for trace in traces
    )
    if not is_right:
        raise UsageError(f"{path}: expected a list with one list of integers per prompt")
    return [tuple(trace) for trace in traces]
