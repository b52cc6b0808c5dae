"""Server-sent events, and what a client that goes away means."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from .errors import ApiError
from .generation import Generation

logger = logging.getLogger(__name__)

T = TypeVar("T")

DONE = "data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment (WHATWG HTML, section 9.2.6), which no reader of events sees."""
SECONDS_TO_READ = 5.0
"""Beyond a request's deadline, for a client to read the last of its events."""


class EventStream(StreamingResponse):
    """A stream of chunks that frees its request in the engine however it ends.

    Args:
        generation: the request.
        chunks: yields what to send; what it raises becomes an error event.
        keep_alive_seconds: of silence after which a comment is sent; 0 for none.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        chunks: AsyncIterator[BaseModel],
        *,
        keep_alive_seconds: float,
    ) -> None:
        super().__init__(_events(chunks), headers={"Cache-Control": "no-cache"})
        self._generation = generation
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A client that does not read stops `send`; it must not hold the request for ever. Returning
        # early closes the connection without the end that HTTP asks for, which clients notice.
        try:
            async with asyncio.timeout_at(self._generation.deadline + SECONDS_TO_READ):
                await super().__call__(scope, receive, send)
        except TimeoutError:
            logger.warning("%s: the client did not read its events", self._generation.name)
        finally:
            self._generation.close()

    async def stream_response(self, send: Send) -> None:
        """Sends headers and events, and comments where no event comes for long."""
        if not self._keep_alive_seconds:
            return await super().stream_response(send)
        sender = _Sender(send)
        comments = asyncio.ensure_future(sender.break_silence(self._keep_alive_seconds))
        try:
            await super().stream_response(sender)
        finally:
            comments.cancel()
            await asyncio.wait({comments})


class _Sender:
    """An ASGI `send` that knows when it was last used, and takes one message at a time."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()
        self._now = asyncio.get_running_loop().time
        self._last_sent = self._now()

    async def __call__(self, message: Message) -> None:
        async with self._turn:
            await self._send(message)
            self._last_sent = self._now()

    async def break_silence(self, seconds: float) -> None:
        """Sends a comment whenever nothing has been sent for so long; ends when it is cancelled."""
        while True:
            await asyncio.sleep(self._last_sent + seconds - self._now())
            async with self._turn:  # one that waits for its reader has something on the way
                if self._now() < self._last_sent + seconds:
                    continue
                message = {"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True}
                await self._send(message)
                self._last_sent = self._now()


async def _events(chunks: AsyncIterator[BaseModel]) -> AsyncIterator[str]:
    try:
        async for chunk in chunks:
            yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    except ApiError as error:
        yield error_event(error)
    except Exception:
        logger.exception("a stream failed")
        yield error_event(ApiError(500, "the server failed; its log says why"))
    yield DONE


def error_event(error: ApiError) -> str:
    """The event that tells a reader of a stream what went wrong."""
    body = error.to_response().body
    return f"data: {bytes(body).decode()}\n\n"


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; cancelled, with ClientGoneError, if the connection is closed first."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_gone(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


NOBODY = Response(status_code=499)
"""What a route returns after ClientGoneError; it reaches no one."""
