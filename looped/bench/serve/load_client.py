"""An open-loop client of OpenAI's /v1/completions: sends on time, and notes when tokens come.

All of it is on one event loop and its clock: tests drive it with a virtual one.
"""

import asyncio
import gc
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any, Self

import httpx

from looped.errors import LoopedError, UsageError
from looped.measure.arrivals import Arrival
from looped.process.file_limit import lacks_files

from .completion_reading import LONGEST_DETAIL, MalformedChunkError, Reading
from .loop_ticker import LoopTicker
from .served_request import Failure, ServedRequest

logger = logging.getLogger(__name__)

SECONDS_TO_PREPARE = 0.05
"""Between the moment at which a run's clock starts and now, so that the first one is in time."""


class LoadClient:
    """For use on one event loop, as an asynchronous context.

    Args:
        url: of the server, without /v1.
        model: its name in requests; None asks the server.
        api_key: sent as a bearer's token, if there is one.
        timeout: seconds that a request may take.
        transport: of the connections; None for the network.

    Raises:
        UsageError: what is given as a URL is none.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.model = model
        self._timeout = timeout
        # No limit of connections: one that makes requests wait would close the loop.
        self._client = httpx.AsyncClient(
            base_url=base_url_of(url),
            headers={"Accept-Encoding": "identity"}
            | ({} if api_key is None else {"Authorization": f"Bearer {api_key}"}),
            timeout=httpx.Timeout(None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            transport=transport,
        )
        self._has_usage_always = True
        """Whether the server takes continuous_usage_stats, which count the tokens of each chunk."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def model_card(self) -> dict[str, Any]:
        """What /v1/models says about the model; the only one, if none was named.

        Raises:
            LoopedError: no server, no such model, or several to choose from.
        """
        body = await self._get("/v1/models")
        try:
            cards = {card["id"]: card for card in json.loads(body)["data"]}
        except (ValueError, KeyError, TypeError):
            raise LoopedError(
                f"{self._client.base_url}v1/models: expected a list of models, got {body[:200]!r}"
            ) from None
        if self.model is None and len(cards) == 1:
            (self.model,) = cards
        if self.model not in cards:
            raise LoopedError(
                f"expected a model that the server has, got {self.model!r}; choose one with "
                f"--model: {', '.join(cards) or 'it has none'}"
            )
        return cards[self.model]

    async def metrics(self) -> str | None:
        """The page /metrics, or None where the server has none."""
        try:
            return await self._get("/metrics")
        except LoopedError:
            return None

    async def warm_up(self, arrival: Arrival) -> ServedRequest:
        """One request that is not measured: opens the way, and shows whether the server follows.

        Raises:
            LoopedError: it does not answer, or not with the tokens that it was asked for.
        """
        (served,) = await self.play([arrival])
        is_refused = served.failure is Failure.REFUSED and served.detail.startswith(("400", "422"))
        if is_refused and self._has_usage_always:
            self._has_usage_always = False
            (served,) = await self.play([arrival])
            if served.failure is None:
                logger.info("the server takes no continuous_usage_stats: a chunk counts as a token")
        if served.failure is not None:
            raise LoopedError(f"the first request failed: {served.failure}: {served.detail}")
        return served

    async def play(
        self,
        arrivals: Sequence[Arrival],
        *,
        on_end: Callable[[ServedRequest], None] = lambda served: None,
        at_last: Callable[[], Awaitable[None]] | None = None,
        ticker: LoopTicker | None = None,
    ) -> list[ServedRequest]:
        """Sends every request at its time, however late the answers are, and waits for all.

        Args:
            arrivals: in order of time.
            on_end: called with every request that is over.
            at_last: awaited when the last one is sent, while answers come in.
            ticker: notes meanwhile how late the event loop is; None asks nobody.

        Returns:
            The requests in the order of the list.
        """
        bodies = [self._body(arrival) for arrival in arrivals]
        # What set-up leaves behind is long-lived; going through it stops the clock for a moment.
        gc.collect()
        gc.freeze()
        try:
            async with ticker or nullcontext():
                return await self._play(arrivals, bodies, on_end, at_last)
        finally:
            gc.unfreeze()

    async def _play(
        self,
        arrivals: Sequence[Arrival],
        bodies: Sequence[bytes],
        on_end: Callable[[ServedRequest], None],
        at_last: Callable[[], Awaitable[None]] | None,
    ) -> list[ServedRequest]:
        loop = asyncio.get_running_loop()
        start = loop.time() + SECONDS_TO_PREPARE
        tasks = []
        for arrival, body in zip(arrivals, bodies, strict=True):
            await asyncio.sleep(start + arrival.time - loop.time())
            tasks.append(loop.create_task(self._serve(arrival, body, start, on_end)))
        if at_last is not None:
            await at_last()
        return await asyncio.gather(*tasks)

    async def _serve(
        self,
        arrival: Arrival,
        body: bytes,
        start: float,
        on_end: Callable[[ServedRequest], None],
    ) -> ServedRequest:
        sent = asyncio.get_running_loop().time()
        reading = Reading(start)
        failure, detail = await self._read(body, reading, start + arrival.time + self._timeout)
        ended = asyncio.get_running_loop().time()
        num_tokens = reading.num_tokens
        if failure is None and num_tokens != arrival.prompt.output_tokens:
            failure = Failure.WRONG_LENGTH
            detail = f"expected {arrival.prompt.output_tokens} tokens, got {num_tokens}"
        served = ServedRequest(
            index=arrival.index,
            arrival=arrival.time,
            sent=sent - start,
            ended=ended - start,
            chunk_times=tuple(reading.chunk_times),
            prompt_tokens=len(arrival.prompt.token_ids),
            output_tokens=num_tokens,
            usage=reading.usage,
            failure=failure,
            detail=detail[:LONGEST_DETAIL],
        )
        on_end(served)
        return served

    async def _read(
        self, body: bytes, reading: Reading, deadline: float
    ) -> tuple[Failure | None, str]:
        """Sends a request and reads its answer to the end; how it failed, if it did."""
        try:
            async with (
                asyncio.timeout_at(deadline),
                self._client.stream(
                    "POST",
                    "/v1/completions",
                    content=body,
                    headers={"Content-Type": "application/json"},
                ) as response,
            ):
                if response.status_code != 200:
                    text = (await response.aread()).decode(errors="replace")
                    return Failure.REFUSED, f"{response.status_code}: {text}"
                async for piece in response.aiter_bytes():
                    reading.take(piece)
        except TimeoutError:
            return Failure.TIMEOUT, f"not over after {self._timeout:g} seconds"
        except httpx.ConnectError as error:
            if lacks_files(error):
                return Failure.NO_SOCKET, "too many open files; see ulimit -Hn"
            return Failure.NO_CONNECTION, str(error)
        except httpx.HTTPError as error:
            return Failure.BROKEN, f"{type(error).__name__}: {error}"
        except MalformedChunkError as error:
            return Failure.MALFORMED, str(error)
        if reading.error is not None:
            return Failure.ERROR_EVENT, reading.error
        return (None, "") if reading.is_finished else (Failure.CUT_OFF, "no finish_reason came")

    def _body(self, arrival: Arrival) -> bytes:
        options = {"include_usage": True}
        if self._has_usage_always:
            options["continuous_usage_stats"] = True
        fields = {
            "model": self.model,
            "prompt": arrival.prompt.token_ids,
            "max_tokens": arrival.prompt.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": options,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    async def _get(self, path: str) -> str:
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.get(path)
        except (httpx.HTTPError, TimeoutError) as error:
            raise LoopedError(
                f"{self._client.base_url.join(path)} does not answer: {error!r}; is a server there?"
            ) from None
        if response.status_code != 200:
            raise LoopedError(
                f"{self._client.base_url.join(path)}: expected status 200, got "
                f"{response.status_code}: {response.text[:LONGEST_DETAIL]}"
            )
        return response.text


def base_url_of(url: str) -> httpx.URL:
    """A server's address without /v1; UsageError for what is no address of HTTP."""
    try:
        parsed = httpx.URL(url.rstrip("/").removesuffix("/v1"))
    except httpx.InvalidURL as error:
        raise UsageError(f"--url {url!r} is no URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"expected --url http://HOST:PORT, got {url!r}")
    return parsed
