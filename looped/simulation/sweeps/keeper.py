"""Results that are written while they grow, so that a command that ends early loses little."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from looped.measure.results_folder import make_folder, write_results

from ..table_files import write_table

WRITE_EVERY = 5.0
"""Seconds between two writings of what there is so far."""


class Keeper:
    """Writes now and then while its block lasts, and once more when it ends, however it does.

    Args:
        write: writes all there is, in place of earlier files; is told whether that is everything.
        clock: seconds.
    """

    def __init__(
        self, write: Callable[[bool], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._next_time = clock() + WRITE_EVERY

    def grew(self) -> None:
        """There is more; it is written if the last time is some seconds ago."""
        if self._clock() >= self._next_time:
            self._write(False)
            self._next_time = self._clock() + WRITE_EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write(kind is None)


class ManyRuns(Protocol):
    """Runs whose results grow, and can be told at any time."""

    @property
    def head(self) -> Mapping[str, Any]:
        """What its files are."""

    @property
    def tables(self) -> Mapping[str, list[dict[str, Any]]]:
        """Rows so far, by the tables' names."""

    def run(self, *, num_processes: int = 1, on_growth: Callable[[], None] = lambda: None) -> None:
        """Runs it all; calls `on_growth` whenever there is more to tell."""

    def page(self, description: Mapping[str, Any]) -> str:
        """What is known so far, for people."""

    def to_json(self, description: Mapping[str, Any], *, is_complete: bool) -> dict[str, Any]:
        """What is known so far, for machines."""


def run_into_folder(
    runs: ManyRuns,
    folder: Path,
    description: Mapping[str, Any],
    *,
    table_format: str = "csv",
    num_processes: int = 1,
) -> None:
    """Runs it all into a new folder, which has what there is whenever that ends.

    Args:
        runs: a sweep or a comparison.
        folder: for result.json, result.md and the tables.
        description: how it came about.
        table_format: csv or parquet.
        num_processes: that simulate at once.
    """

    def write(is_complete: bool) -> None:
        for name, rows in runs.tables.items():
            if rows:
                write_table(folder / f"{name}.{table_format}", rows)
        values = runs.to_json(description, is_complete=is_complete)
        write_results(folder, values, runs.page(description))

    make_folder(folder, {**runs.head, **description})
    with Keeper(write) as keeper:
        runs.run(num_processes=num_processes, on_growth=keeper.grew)
