"""One run of a load: the list of arrivals played, and what client and server noted meanwhile."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import process_time

from looped.measure.arrivals import Arrival

from .load_client import LoadClient
from .loop_ticker import LoopTicker
from .metrics_page import MetricsPage
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
    median_queue: float | None = None
    """Seconds from arrival to a first launch, as the server counts them; None if it does not."""
    client_seconds: float = 0.0
    """CPU time of the client's process while the list was played."""
    lateness: list[float] = field(default_factory=list)
    """Seconds by which the client's event loop was late, looked at again and again."""


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
    before = await _idle_page(client)
    at_last = MetricsPage()

    async def look() -> None:
        nonlocal at_last
        at_last = await _page(client)

    ticker = LoopTicker()
    busy_before = process_time()
    has_page = bool(before.values)
    requests = await client.play(
        arrivals, on_end=on_end, at_last=look if has_page else None, ticker=ticker
    )
    client_seconds = process_time() - busy_before
    after = await _idle_page(client) if has_page else before
    waiting = at_last.values.get("requests_waiting")
    return LoadRun(
        name=name,
        rate=rate,
        requests=requests,
        counted=after.counted_since(before),
        waiting_at_last=None if waiting is None else round(waiting),
        median_queue=after.median_queue_since(before),
        client_seconds=client_seconds,
        lateness=ticker.lateness,
    )


async def _page(client: LoadClient) -> MetricsPage:
    page = await client.metrics()
    try:
        return MetricsPage() if page is None else MetricsPage.parse(page)
    except ValueError as error:
        logger.info("the server's /metrics is not used: %s", error)
        return MetricsPage()


async def _idle_page(client: LoadClient) -> MetricsPage:
    """The server's numbers, once it has nothing to do."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS_TO_DRAIN
    while True:
        page = await _page(client)
        if not page.load or loop.time() >= deadline:
            return page
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
