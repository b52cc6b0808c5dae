"""Threads for tokenising and detokenising: bounded, and apart from everything else.

A call of the tokenizer cannot be stopped once it runs. What is under way is therefore counted until
its thread is done with it, also when nobody waits for it any more, and is refused above a limit.
Long texts have threads and a limit of their own, so that short ones never wait for them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .errors import ApiError

T = TypeVar("T")

LONG_TEXT = 32_768
"""Characters, or tokens to decode, above which a job is a long one: some ten milliseconds."""
NUM_THREADS = 2
"""For short jobs, and as many again for long ones."""
MOST_LONG_JOBS = 8
"""Long jobs that run or wait."""


class TextWork:
    """Runs jobs for the routes. For use on one event loop.

    Args:
        most_short_jobs: short jobs that may run or wait.
        seconds: that a caller waits for its job.
    """

    def __init__(self, *, most_short_jobs: int, seconds: float) -> None:
        self._lanes = Lane("short", most_short_jobs), Lane("long", MOST_LONG_JOBS)
        self._seconds = seconds

    async def run(self, size: int, job: Callable[[], T]) -> T:
        """What the job returns or raises.

        Args:
            size: characters or tokens that the job goes through.
            job: runs in a thread; not at all if the caller is cancelled before it begins.

        Raises:
            ApiError: too much is under way (429), or it took too long (408).
        """
        lane = self._lanes[size > LONG_TEXT]
        try:
            async with asyncio.timeout(self._seconds):
                return await lane.run(job)
        except TimeoutError:
            raise ApiError(
                408,
                f"the text was not processed after {self._seconds:g} seconds; send a shorter one, "
                "or raise --request-timeout",
            ) from None

    @property
    def is_busy(self) -> bool:
        """Whether a thread is in a job."""
        return any(lane.is_busy for lane in self._lanes)

    def stop(self) -> None:
        """Takes no more jobs and drops those that wait; does not wait for those that run."""
        for lane in self._lanes:
            lane.stop()


class Lane:
    """Threads, and the jobs that they have.

    Args:
        name: of the jobs, in messages.
        most_jobs: that may run or wait.
    """

    def __init__(self, name: str, most_jobs: int) -> None:
        self._name = name
        self._most_jobs = most_jobs
        self._jobs: set[Future[Any]] = set()
        self._is_stopped = False
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix=f"looped-text-{name}")

    async def run(self, job: Callable[[], T]) -> T:
        """What the job returns or raises; ApiError as of `TextWork.run`."""
        if self._is_stopped:
            raise ApiError(503, "the server is stopping", code="draining")
        # Discarding happens in whichever thread ends a job; of a set it is one step.
        if len(self._jobs) >= self._most_jobs:
            raise ApiError(
                429,
                f"{self._most_jobs} {self._name} texts are being tokenised or wait for it; try "
                "again",
                code="server_overloaded",
            )
        future = self._executor.submit(job)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return await asyncio.wrap_future(future)

    @property
    def is_busy(self) -> bool:
        """Whether a thread is in a job."""
        return any(future.running() for future in tuple(self._jobs))

    def stop(self) -> None:
        """As of `TextWork.stop`."""
        self._is_stopped = True
        self._executor.shutdown(wait=False, cancel_futures=True)
