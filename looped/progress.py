"""Progress bars: on stderr, gone when done, and silent where nobody is watching."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")


@contextmanager
def progress_bars(*, is_shown: bool = True) -> Iterator[Progress]:
    """A place for bars; without a terminal on stderr it shows nothing."""
    is_hidden = not is_shown or not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=is_hidden) as progress:
        yield progress


def track(items: Sequence[T], description: str) -> Iterator[T]:
    """Yields the items under one bar."""
    with progress_bars() as progress:
        yield from progress.track(items, description=description)
