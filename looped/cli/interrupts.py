"""Ctrl-C in commands that run an engine."""

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looped.outputs import StepOutput


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
