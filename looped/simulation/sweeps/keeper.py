"""Results that are written while they grow, so that whatever ends a command early loses little."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

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
