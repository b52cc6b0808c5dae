"""One run of a load: the list of arrivals played, and what client and server noted meanwhile."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import process_time

from .arrivals import Arrival
from .load_client import LoadClient
from .metrics_page import counted_between, read_counters
from .served_request import ServedRequest

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_DRAIN = 60.0
"""For what a client has given up to leave the server; with what is left then, the run goes on."""


@dataclass(frozen=True, kw_only=True)
class LoadRun:
    """What was seen, not judged yet."""

    name: str
    rate: float
    """Requests per second that were due."""
    requests: list[ServedRequest]
    counted: dict[str, int] = field(default_factory=dict)
    """By how much the server's counters rose; empty where it has none that are known."""
    waiting_at_last: int | None = None
    """Requests that waited for a slot when the last one came, as the server says."""
    client_seconds: float = 0.0
    """CPU time of the client's process while the list was played."""


async def play_run(
    client: LoadClient,
    arrivals: Sequence[Arrival],
    *,
    name: str,
    rate: float,
    on_end: Callable[[ServedRequest], None] = lambda served: None,
) -> LoadRun:
    """Plays a list on a server that is idle, or as idle as it gets.

    Args:
        client: of the server.
        arrivals: in order of time.
        name: of the run.
        rate: of the arrivals, for the record.
        on_end: called with every request that is over.
    """
    before = await _idle_counters(client)
    at_last: dict[str, float] = {}

    async def look() -> None:
        at_last.update(await _counters(client))

    busy_before = process_time()
    requests = await client.play(arrivals, on_end=on_end, at_last=look if before else None)
    client_seconds = process_time() - busy_before
    after = await _idle_counters(client) if before else {}
    waiting = at_last.get("requests_waiting")
    return LoadRun(
        name=name,
        rate=rate,
        requests=requests,
        counted=counted_between(before, after),
        waiting_at_last=None if waiting is None else round(waiting),
        client_seconds=client_seconds,
    )


async def _counters(client: LoadClient) -> dict[str, float]:
    page = await client.metrics()
    try:
        return {} if page is None else read_counters(page)
    except ValueError as error:
        logger.info("the server's /metrics is not used: %s", error)
        return {}


async def _idle_counters(client: LoadClient) -> dict[str, float]:
    """The server's counters, once it has nothing to do."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_TO_DRAIN
    while True:
        values = await _counters(client)
        load = values.get("requests_waiting", 0) + values.get("requests_running", 0)
        if not load or loop.time() >= deadline:
            return values
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
