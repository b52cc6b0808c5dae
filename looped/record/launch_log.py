"""The launch log on disk: JSON lines, one a launch, with a schema version in the first.

    {"type": "header", "schema": 3, …}    what the lists in the other lines hold, and `meta`
    {"type": "engine", …}                 whose the next lines are: its scheduler's options, buckets
    {"type": "request", …}                a request entered the queue
    {"type": "launch", …}                 kind, rows, head, moments, queues, items, tokens
    {"type": "abort", …}                  a request is to end
    {"type": "end", …}                    a request is over
    {"type": "fault", …}                  a launch failed

A launch's line is written when it is applied, and so behind the requests that came while it was
out. Every line counts the launches of its engine, by `launch_index` those that had been dispatched,
by `num_applied` (of a launch its own `index`) those that had been applied.

A name that ends in `.gz` is compressed. Lines are written in batches, so a process that is killed
loses the last of them; a cut last line is dropped with a warning when the log is read.
"""

import gzip
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from looped.engine.events import LogEvent
from looped.engine.observer import LaunchObserver, LaunchRecorder
from looped.errors import LoopedError, UsageError

from .launch_lines import (
    ITEM_FIELDS,
    QUEUE_FIELDS,
    TOKEN_FIELDS,
    event_from_json,
    event_to_json,
)

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 3
OLD_SCHEMAS = {
    1: "whose launches say less of what was scheduled",
    2: "in which the LM head is a launch of its own (kind coda)",
}
"""What is different in logs that are not read any more."""
WAITS = "waits_for_device"
"""In a log's meta: whether the engine waited for every launch, so that `ended` is the device's."""
LINES_KEPT = 256
"""Lines that are held back before they are written together."""
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def check_launch_log_file(path: Path | None) -> None:
    """UsageError for a place that is taken or has no folder, before anything slow is done."""
    if path is None:
        return
    if path.exists():
        raise UsageError(f"{path} exists; choose another name for the launch log")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: {path.parent} is not a folder")


class LaunchLogWriter:
    """Writes events to a new file, which it makes with the first of them.

    Without an event there is no file, so that what failed at its start can be run again.

    Args:
        path: must not exist.
        meta: anything of JSON that says what the log is of.

    Raises:
        UsageError: there is a file already, or no folder for it.
    """

    def __init__(self, path: Path, meta: dict[str, Any] | None = None) -> None:
        check_launch_log_file(path)
        self._path = path
        self._file: IO[str] | None = None
        self.failure: OSError | None = None
        """Why it gave up: a full disk ends the log, not the requests."""
        header = {
            "type": "header",
            "schema": SCHEMA_VERSION,
            "looped": version("looped"),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "unit": "seconds",
            "item_fields": ITEM_FIELDS,
            "token_fields": TOKEN_FIELDS,
            "queue_fields": QUEUE_FIELDS,
            "meta": meta or {},
        }
        self._lines = [_encode(header)]
        self._is_closed = False
        self._lock = threading.Lock()
        """A server may close the log while its engine's thread is still in a launch."""

    def write(self, event: LogEvent) -> None:
        """Adds one line; does nothing after a failure, or after the end."""
        with self._lock:
            if self.failure is None and not self._is_closed:
                self._lines.append(_encode(event_to_json(event)))
                if len(self._lines) >= LINES_KEPT:
                    self._flush()

    def flush(self) -> None:
        """Writes what was held back. A failure is logged once and kept in `failure`."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        text = "".join(f"{line}\n" for line in self._lines)
        self._lines.clear()
        try:
            if self._file is None:
                self._file = _open_text(self._path, "x")
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Writes the rest; what comes afterwards is dropped. Says so if there is no file."""
        with self._lock:
            self._is_closed = True
            has_events = self._file is not None or len(self._lines) > 1
            if self.failure is None and has_events:
                self._flush()
            elif self.failure is None:
                logger.warning("no request came, so there is no launch log %s", self._path)
            if self._file is not None:
                try:
                    self._file.close()
                except OSError as error:
                    self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            logger.error("the launch log %s ends here: %s", self._path, error)
        self.failure = error


@contextmanager
def recording(path: Path | None, *, waits_for_device: bool = False) -> Iterator[LaunchObserver]:
    """An observer that logs to a file while the block runs; a deaf one without a path."""
    if path is None:
        yield LaunchObserver()
        return
    writer = LaunchLogWriter(path, {WAITS: waits_for_device})
    try:
        yield LaunchRecorder(writer.write, waits_for_device=waits_for_device)
    finally:
        writer.close()


def write_launch_log(path: Path, events: Iterable[LogEvent], meta: dict[str, Any]) -> None:
    """A whole log at once, a header alone without events; OSError if it cannot be written."""
    writer = LaunchLogWriter(path, meta)
    writer.flush()
    for event in events:
        writer.write(event)
    writer.close()
    if writer.failure is not None:
        raise writer.failure


@dataclass(frozen=True)
class LaunchLog:
    """A log that was read."""

    path: Path
    meta: dict[str, Any]
    events: tuple[LogEvent, ...]


def read_launch_log(path: Path) -> LaunchLog:
    """Reads a log, of this schema.

    Raises:
        LoopedError: no such file, not a launch log, another schema, or a damaged line.
    """
    try:
        with _open_text(path, "r") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        raise LoopedError(f"{path} cannot be read: there is no such file") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise LoopedError(f"{path} cannot be read: {error}") from None
    if lines and not _is_whole(lines[-1]):
        logger.warning("%s: the last line is cut off and left out", path)
        lines.pop()
    header = _parse(path, 1, lines[0]) if lines else {}
    if header.get("type") != "header":
        raise LoopedError(f"{path} is not a launch log: expected a header in line 1")
    if header.get("schema") != SCHEMA_VERSION:
        raise LoopedError(f"{path}: {_refusal(header)}")
    events = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            events.append(event_from_json(_parse(path, number, line)))
        except (KeyError, TypeError, ValueError) as error:
            raise LoopedError(f"{path}, line {number} is damaged: {error!r}") from None
    return LaunchLog(path, header["meta"], tuple(events))


def _refusal(header: dict[str, Any]) -> str:
    """Why a log of another schema is not read, and what to do."""
    schema, writer = header.get("schema"), header.get("looped")
    difference = OLD_SCHEMAS[schema] + ", " if schema in OLD_SCHEMAS else ""
    return (
        f"schema is {schema!r}, {difference}and this version of looped reads {SCHEMA_VERSION}; "
        f"make the log again, or read it with the version that wrote it, looped {writer}"
    )


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise LoopedError(f"{path}, line {number} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise LoopedError(f"{path}, line {number}: expected a JSON object, got {values!r}")
    return values


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _open_text(path: Path, mode: str) -> IO[str]:
    opener: Callable[..., IO[str]] = gzip.open if path.suffix == ".gz" else open
    return opener(path, mode + "t", encoding="utf-8")
