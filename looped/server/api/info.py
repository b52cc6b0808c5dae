"""What the server says about itself: models, health, metrics, the status page."""

from importlib.resources import files
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ..metrics import Metrics
from ..service import ServiceState
from .backend import Backend
from .responses import ERRORS, ModelCard, ModelList


def make_router(backend: Backend, metrics: Metrics) -> APIRouter:
    """The routes, for one served model."""
    router = APIRouter()
    service = backend.service
    start = uuid4().hex
    page = files("looped.server").joinpath("status.html").read_text(encoding="utf-8")

    def card() -> ModelCard:
        return ModelCard(
            id=backend.model_name,
            object="model",
            created=backend.created,
            owned_by="looped",
            max_model_len=backend.max_model_len,
            num_loops=backend.num_loops,
            vocab_size=backend.vocab_size,
        )

    @router.get("/v1/models", response_model=ModelList)
    async def list_models() -> ModelList:
        """The served model, as a list of one."""
        return ModelList(object="list", data=[card()])

    @router.get("/v1/models/{name:path}", response_model=ModelCard, responses={404: ERRORS[404]})
    async def get_model(name: str) -> ModelCard:
        """The served model, by its name."""
        backend.check_model(name)
        return card()

    @router.get("/health", responses={503: {"description": "starting, draining or failed"}})
    async def health() -> JSONResponse:
        """200 while requests are taken; 503 while warming up, stopping, or without an engine."""
        is_ready = service.state is ServiceState.READY
        return JSONResponse(
            {"status": service.state.value, "reason": service.failure or None},
            status_code=200 if is_ready else 503,
        )

    @router.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Counters, gauges and histograms, in Prometheus's text format."""
        return Response(
            generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    @router.get("/status")
    async def status(since: int = 0) -> dict[str, Any]:
        """What the status page draws; `since` leaves out launches with a lower number. Numbers
        begin at 0 again with another `start`."""
        stats, now = service.stats, service.now()
        return {
            "start": start,
            "state": service.state.value,
            "model": backend.model_name,
            "num_loops": backend.num_loops,
            "num_slots": backend.max_num_seqs,
            "num_waiting": stats.num_waiting,
            "num_active": stats.num_active,
            "num_used_blocks": stats.num_used_blocks,
            "num_blocks": stats.num_blocks,
            "tokens_per_second": service.launches.token_rate(now),
            "exit_depths": metrics.exit_depths,
            "launches": service.launches.since(since),
        }

    @router.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def status_page() -> HTMLResponse:
        return HTMLResponse(page)

    return router
