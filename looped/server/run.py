"""A process that serves one model, and ends as its supervisor wants it to."""

import asyncio
import logging
import os
import socket
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from looped.llm import LLM
from looped.process.file_limit import raise_file_limit

from .app import create_app
from .config import ServerConfig
from .listening import allow_listening, url_host
from .service import Service
from .text_work import TextWork

logger = logging.getLogger(__name__)

SECONDS_TO_KEEP_ALIVE = 75
"""Idle connections: longer than clients keep theirs (15 s in aiohttp), or a server that closes one
meets the next request on it."""
SECONDS_TO_CLOSE = 1
"""For connections to close, after the last request is over."""


class DrainingServer(uvicorn.Server):
    """Finishes what runs when it is told to stop, and then exits with 0.

    The first SIGTERM or SIGINT starts draining: /health turns red, new work is refused, and the
    server leaves when nothing is outstanding or the drain timeout is over. The second one leaves
    at once.

    Args:
        app: made by `create_app`.
        config: where to listen, and for how long to drain.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                log_config=None,
                access_log=False,
                timeout_keep_alive=SECONDS_TO_KEEP_ALIVE,
                timeout_graceful_shutdown=SECONDS_TO_CLOSE,
            )
        )
        self._service: Service = app.state.service
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen; before that, a signal means to leave at once."""
        self._loop = asyncio.get_running_loop()
        allow_listening(sockets or [])
        await super().startup(sockets)
        if sockets:  # else uvicorn says it
            host, port = url_host(self.config.host), sockets[0].getsockname()[1]
            logger.info("listening at http://%s:%d (Ctrl-C ends it)", host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal; not kept to be raised again, as uvicorn does, so that the exit status is 0."""
        if self._draining is not None or self._loop is None:
            self.force_exit = self.should_exit = True
            self._service.hurry()
            return
        self._loop.call_soon_threadsafe(self.start_draining)

    def start_draining(self) -> None:
        """Begins to stop; called on the event loop."""
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        try:
            await self._service.drain()
        finally:
            self.should_exit = True


def serve(llm: LLM, config: ServerConfig, sockets: list[socket.socket]) -> bool:
    """Serves a model until a signal comes.

    Args:
        llm: the model.
        config: the server's options.
        sockets: `taken_sockets` of the options' host and port.

    Returns:
        Whether threads are left at work: the process must then end by `leave_at_once`.

    Raises:
        SystemExit: with a status other than 0, if the server cannot start.
    """
    app = create_app(llm, config)
    log_to(logging.getLogger("looped"))
    raise_file_limit()
    try:
        DrainingServer(app, config).run(sockets)
    except SystemExit as error:
        if has_threads(app):
            leave_at_once(error.code if isinstance(error.code, int) else 1)
        raise
    return has_threads(app)


def has_threads(app: FastAPI) -> bool:
    """Whether the engine or the tokenizer may still be at work."""
    service: Service = app.state.service
    text_work: TextWork = app.state.text_work
    return service.has_thread or text_work.is_busy


def leave_at_once(status: int = 0) -> NoReturn:
    """Ends the process as it stands: Python would take down what its threads still use (XLA's
    compiler crashes then), or wait for them."""
    logging.shutdown()
    os._exit(status)


def log_to(logger: logging.Logger) -> None:
    """Lets uvicorn say what it has to say where that logger does."""
    other = logging.getLogger("uvicorn")
    other.handlers, other.propagate = logger.handlers, False
    other.setLevel(logger.level)
