"""Ctrl-C in all commands, and SIGTERM in those that have processes of their own."""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from looped.engine.outputs import StepOutput

EXIT_CODE = 128 + signal.SIGINT
SECONDS_TO_END = 1.5
"""After the second Ctrl-C, for a command to end on its own."""


class StoppableRun(Protocol):
    """Starts a run that ends, with what it has, once it is asked to."""

    def __call__(self, *, should_stop: Callable[[], bool]) -> "Iterator[StepOutput]": ...


def interruptible(start: StoppableRun) -> "Iterator[StepOutput]":
    """The outputs of a run, with Ctrl-C acted on between two steps, or two compilations.

    An exception that Python raises on the signal itself may land in a callback of JAX's that
    discards it, and the run would go on.
    """
    interrupts: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        for output in start(should_stop=lambda: bool(interrupts)):
            if interrupts:
                break
            yield output
        if interrupts:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def ended_by_second_interrupt() -> Iterator[None]:
    """Ends the process soon after the second Ctrl-C, at any point of the block.

    Python acts on a signal when its main thread comes back from what it has called, and a
    compilation may take minutes. So a thread reads the signals: Python hands on their numbers at
    once, from the signal itself. The main thread alone can be waited for; elsewhere this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    watch = _Watch(reader)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        writer.close()
        watch.join()
        reader.close()
        if watch.num_interrupts:
            # What is left is the end of the process, and nobody watches that.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


class _Watch(threading.Thread):
    """Counts interrupts until the other end of the socket is closed."""

    def __init__(self, reader: socket.socket) -> None:
        super().__init__(name="interrupts", daemon=True)
        self.num_interrupts = 0
        self._reader = reader

    def run(self) -> None:
        deadline = None
        try:
            while numbers := self._reader.recv(64):
                self.num_interrupts += numbers.count(signal.SIGINT)
                if self.num_interrupts > 1:
                    deadline = deadline or time.monotonic() + SECONDS_TO_END
                    self._reader.settimeout(max(0.01, deadline - time.monotonic()))
        except TimeoutError:
            os._exit(EXIT_CODE)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the block as Ctrl-C does, so that no process of ours is left behind."""
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
