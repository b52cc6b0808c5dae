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
MOST_LONG_TEXT = 2**25
"""Characters or tokens of the long jobs that run or wait: some ten seconds of work, as much text as
eight bodies have of the size that is allowed by default."""


class TextWork:
    """Runs jobs for the routes. For use on one event loop.

    Args:
        most_short_jobs: short jobs that may run or wait.
        seconds: that a caller waits for its job.
    """

    def __init__(self, *, most_short_jobs: int, seconds: float) -> None:
        self._short = Lane("short", most_short_jobs, "texts")
        self._long = Lane("long", MOST_LONG_TEXT, "characters")
        self._seconds = seconds

    async def run(self, size: int, job: Callable[[], T]) -> T:
        """What the job returns or raises.

        Args:
            size: characters or tokens that the job goes through.
            job: runs in a thread; not at all if the caller is cancelled before it begins.

        Raises:
            ApiError: too much is under way (429), or it took too long (408).
        """
        lane, load = (self._long, size) if size > LONG_TEXT else (self._short, 1)
        try:
            async with asyncio.timeout(self._seconds):
                return await lane.run(load, job)
        except TimeoutError:
            raise ApiError(
                408,
                f"the text was not processed after {self._seconds:g} seconds; send a shorter one, "
                "or raise --request-timeout",
            ) from None

    @property
    def is_busy(self) -> bool:
        """Whether a thread is in a job."""
        return self._short.is_busy or self._long.is_busy

    def stop(self) -> None:
        """Takes no more jobs and drops those that wait; does not wait for those that run."""
        self._short.stop()
        self._long.stop()


class Lane:
    """Threads, and the jobs that they have.

    Args:
        name: of the texts, in messages.
        most: load of the jobs that run or wait. One that alone has more is taken where no other is.
        unit: what load counts, in messages.
    """

    def __init__(self, name: str, most: int, unit: str) -> None:
        self._name = name
        self._most = most
        self._unit = unit
        self._loads: dict[Future[Any], int] = {}
        self._is_stopped = False
        self._executor = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix=f"looped-text-{name}")

    async def run(self, load: int, job: Callable[[], T]) -> T:
        """What the job returns or raises; ApiError as of `TextWork.run`."""
        if self._is_stopped:
            raise ApiError(503, "the server is stopping", code="draining")
        # Whichever thread ends a job removes it; copying and removing are one step each.
        loads = tuple(self._loads.values())
        if loads and sum(loads) + load > self._most:
            raise ApiError(
                429,
                f"{len(loads)} {self._name} texts are being tokenised or wait for it, and one more "
                f"would be above {self._most:,} {self._unit}; try again",
                code="server_overloaded",
            )
        future = self._executor.submit(job)
        self._loads[future] = load
        future.add_done_callback(self._loads.pop)
        return await asyncio.wrap_future(future)

    @property
    def is_busy(self) -> bool:
        """Whether a thread is in a job."""
        return any(future.running() for future in tuple(self._loads))

    def stop(self) -> None:
        """As of `TextWork.stop`."""
        self._is_stopped = True
        self._executor.shutdown(wait=False, cancel_futures=True)
