"""A server as a client reaches it, and one run of a load on it."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped.measure.arrivals import Arrival, Prompt
from looped.process.file_limit import raise_file_limit
from looped.progress import progress_bars

from .load_client import LoadClient
from .load_run import LoadRun, play_run
from .served_request import ServedRequest

WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server is, and how it is asked."""

    url: str
    model: str | None = None
    """Name in requests; None asks the server."""
    api_key: str | None = None
    timeout: float = 600.0
    """Seconds that a request may take."""

    def client(self) -> LoadClient:
        return LoadClient(self.url, model=self.model, api_key=self.api_key, timeout=self.timeout)

    def card(self) -> dict[str, Any]:
        """What the server says about the model; LoopedError if it does not."""

        async def ask() -> dict[str, Any]:
            async with self.client() as client:
                return await client.model_card()

        return asyncio.run(ask())


def measure_load(
    endpoint: Endpoint,
    arrivals: list[Arrival],
    *,
    name: str,
    rate: float,
    log: Path | None,
) -> LoadRun:
    """Warms up, plays the list, and keeps what was seen.

    Args:
        endpoint: the server.
        arrivals: in order of time.
        name: of the run.
        rate: of the arrivals, for the record.
        log: JSON lines to write, one a request.

    Raises:
        LoopedError: the server does not answer as it should before the run.
    """
    raise_file_limit()
    with progress_bars() as progress:
        task = progress.add_task(f"{name}, {rate:.3g} requests/s", total=len(arrivals))

        async def play() -> LoadRun:
            async with endpoint.client() as client:
                await client.model_card()
                await client.warm_up(Arrival(0, 0.0, _warm_up_prompt(arrivals[0].prompt)))
                return await play_run(
                    client,
                    arrivals,
                    name=name,
                    rate=rate,
                    on_end=lambda served: progress.advance(task),
                )

        run = asyncio.run(play())
    if log is not None:
        lines = (json.dumps(served.to_json()) + "\n" for served in run.requests)
        log.write_text("".join(lines), encoding="utf-8")
    return run


def read_served_requests(log: Path) -> list[ServedRequest]:
    """A run's log, read back."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return [ServedRequest.from_json(json.loads(line)) for line in lines]


def _warm_up_prompt(prompt: Prompt) -> Prompt:
    """The prompt backwards: as long, but a prefix cache finds nothing of it in what follows."""
    return Prompt(prompt.token_ids[::-1], min(WARM_UP_TOKENS, prompt.output_tokens))
