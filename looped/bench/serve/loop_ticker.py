"""How late an event loop is: what a client reads, it may have read so much too late."""

import asyncio
from contextlib import suppress
from typing import Self

SECONDS_BETWEEN_TICKS = 0.02


class LoopTicker:
    """Asks the running loop to be woken again and again, and notes how late that happens.

    An asynchronous context, in which it ticks. A client that is late with no request may still
    stand still while answers come in.
    """

    def __init__(self) -> None:
        self.lateness: list[float] = []
        """Seconds, a value for every tick."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SECONDS_BETWEEN_TICKS
            try:
                await asyncio.sleep(SECONDS_BETWEEN_TICKS)
            finally:  # also when the end comes before the tick that it has delayed
                self.lateness.append(max(0.0, loop.time() - due))
