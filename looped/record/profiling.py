"""Profiles: `jax.profiler` traces of launches, with the host's part of each named.

What is profiled runs slower and is never what is measured. A profile begins with the first launch
of the first request, when everything is compiled; without one no profiler is touched. The device's
operations carry the names of `scopes`: stage, layer, part.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax

from looped.engine.observer import ForwardingObserver, LaunchObserver, Moment
from looped.engine.records import LaunchRecord
from looped.errors import UsageError
from looped.sched import Request, Scheduler, TokenOutput

logger = logging.getLogger(__name__)

STEP = "step"
"""Name of the annotation around each step of the engine: a launch goes out, an older one is read.
"""
PARTS = {
    Moment.SCHEDULING: "schedule",
    Moment.PACKING: "pack",
    Moment.STARTING: "dispatch",
    Moment.AWAITING: "collect",
    Moment.COLLECTED: "apply",
}
"""What the host does from a moment on; after DISPATCHED it is done, or another one follows."""


def check_profile_folder(folder: Path | None) -> None:
    """UsageError for a place that is taken, before anything slow is done."""
    if folder is None:
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder} exists and is not an empty folder; name another for the profile"
        )


@contextmanager
def profiling(
    folder: Path | None, observer: LaunchObserver, *, max_launches: int | None = None
) -> Iterator[LaunchObserver]:
    """An observer that profiles what it hears while the block runs; the given one without a folder.

    Args:
        folder: for the trace; made when it begins.
        observer: hears everything as well.
        max_launches: end the profile after so many; None goes on to the end of the block.
    """
    if folder is None:
        yield observer
        return
    profile = LaunchProfile(folder, observer, max_launches)
    try:
        yield profile
    finally:
        profile.close()


class LaunchProfile(ForwardingObserver):
    """Starts and stops the profiler, and names what the host does in between.

    A profile that cannot be made is logged and given up; the requests go on.
    """

    def __init__(
        self, folder: Path, observer: LaunchObserver, max_launches: int | None = None
    ) -> None:
        super().__init__(observer)
        self._folder = folder
        self._max_launches = max_launches
        self._num_steps = self._num_launches = 0
        self._has_requests = False
        self._is_running = self._is_over = False
        self._step: jax.profiler.StepTraceAnnotation | None = None
        self._part: jax.profiler.TraceAnnotation | None = None
        self._lock = threading.Lock()
        """A server ends the profile while its engine's thread may be in a launch."""

    def added(self, request: Request, scheduler: Scheduler) -> None:
        super().added(request, scheduler)
        self._has_requests = True

    def mark(self, moment: Moment) -> float:
        now = super().mark(moment)
        if moment is Moment.SCHEDULING:
            self._end_step()
            if self._has_requests:
                self._start()
            if self._is_running:
                self._step = jax.profiler.StepTraceAnnotation(STEP, step_num=self._num_steps)
                self._step.__enter__()
                self._num_steps += 1
        self._end_part()
        if self._step is not None and moment in PARTS:
            self._part = jax.profiler.TraceAnnotation(PARTS[moment])
            self._part.__enter__()
        return now

    def applied(
        self,
        record: LaunchRecord,
        tokens: Sequence[TokenOutput],
        scheduler: Scheduler,
        num_compilations: int,
    ) -> None:
        super().applied(record, tokens, scheduler, num_compilations)
        self._num_launches += self._is_running
        is_last = self._num_launches == self._max_launches
        if is_last or not scheduler.has_unfinished_requests:
            self._end_step()
        if is_last:
            self._stop()

    def close(self) -> None:
        """Ends the profile, from any thread, and says if there is none."""
        if not self._is_over and not self._is_running:
            logger.warning("no launch was made, so there is no profile in %s", self._folder)
        self._stop()

    def _start(self) -> None:
        """Begins, once."""
        with self._lock:
            if self._is_running or self._is_over:
                return
            # Python's own calls would be most of a trace, and most of the time.
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            try:
                jax.profiler.start_trace(str(self._folder), profiler_options=options)
            except (OSError, RuntimeError) as error:
                logger.error("no profile: %s", error)
                self._is_over = True
                return
            self._is_running = True

    def _stop(self) -> None:
        """Ends, once, and writes the trace."""
        with self._lock:
            was_running, self._is_running, self._is_over = self._is_running, False, True
            if not was_running:
                return
            try:
                jax.profiler.stop_trace()
            except (OSError, RuntimeError) as error:
                logger.error("the profile was not written: %s", error)
                return
        logger.info("profile of %d launches in %s", self._num_launches, self._folder)

    def _end_part(self) -> None:
        if self._part is not None:
            self._part.__exit__(None, None, None)
            self._part = None

    def _end_step(self) -> None:
        self._end_part()
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
