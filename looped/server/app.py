"""All of the server but the process: an ASGI application for one model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi_offline import FastAPIOffline

from looped.errors import UsageError
from looped.llm import LLM
from looped.sched import ExitMode

from . import errors
from .api import chat, completions, info, tokens
from .api.backend import Backend
from .config import ServerConfig
from .metrics import Metrics
from .middleware import ASSETS_PATH, HeadAsGet, LimitBody, RequireKey
from .service import Service

DESCRIPTION = """An OpenAI-compatible server for looped language models.

Fields marked **Looped** are extensions. Fields that are described as *not served*, and those that
vLLM, SGLang, TGI and llama.cpp have besides, are accepted at the values that change nothing; other
values are answered 400 by name. Unknown fields are ignored with a warning in the log, or answered
400 under `--strict-fields`."""


def create_app(llm: LLM, config: ServerConfig) -> FastAPI:
    """The application; its engine starts and stops with the application's lifespan.

    Args:
        llm: the model. Its engine belongs to the application as long as that runs.
        config: the server's options.

    Returns:
        The application; `app.state.service` is its `Service`.

    Raises:
        UsageError: a model without a tokenizer, or an engine whose exits must be recorded ones.
    """
    if llm.tokenizer is None:
        raise UsageError("the server speaks in texts: the model needs a tokenizer.json, got none")
    if llm.engine.config.exit_mode is ExitMode.TRACE:
        raise UsageError(
            "exit_mode trace replays recorded depths, which requests over HTTP do not bring; "
            "choose another"
        )
    metrics = Metrics(llm.engine.model_config.num_loops)
    service = Service(llm, config, metrics)
    backend = Backend(llm, config, service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        backend.text_work.stop()
        await service.stop()

    # Its API pages take scripts and styles from here, not from the network.
    app = FastAPIOffline(
        title="looped",
        version=version("looped"),
        description=DESCRIPTION,
        lifespan=lifespan,
        static_url=ASSETS_PATH,
    )
    app.state.service, app.state.text_work = service, backend.text_work
    for router in (
        completions.make_router(backend),
        chat.make_router(backend),
        tokens.make_router(backend),
        info.make_router(backend, metrics),
    ):
        app.include_router(router)
    errors.install(app)
    # The last one added sees a request first: other origins may read refusals, too.
    app.add_middleware(LimitBody, max_bytes=config.max_body_bytes, seconds=config.request_timeout)
    if config.api_key is not None:
        app.add_middleware(RequireKey, key=config.api_key)
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    app.add_middleware(HeadAsGet)
    return app
