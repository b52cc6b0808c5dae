"""Ctrl-C in commands that run an engine, and SIGTERM in those that have processes of their own."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looped.engine.outputs import StepOutput


def interruptible(outputs: "Iterator[StepOutput]") -> "Iterator[StepOutput]":
    """The outputs, with Ctrl-C acted on between two steps.

    An exception that Python raises on the signal itself may land in a callback of JAX's that
    discards it, and the run would go on.
    """
    interrupts: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        for output in outputs:
            if interrupts:
                raise KeyboardInterrupt
            yield output
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the block as Ctrl-C does, so that no process of ours is left behind."""
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
