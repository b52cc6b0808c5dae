"""A completions server without a network, with known durations on the event loop's clock."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

Answer = Callable[[int, dict[str, Any]], AsyncIterator[bytes]]


def chunk(text="x", *, finish=None, tokens=None, choices=None) -> bytes:
    """One event of a stream; `tokens` is the usage so far."""
    body: dict[str, Any] = {
        "choices": [{"index": 0, "text": text, "finish_reason": finish}]
        if choices is None
        else choices
    }
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": tokens, "details": {"x": 1}}
    return f"data: {json.dumps(body)}\n\n".encode()


async def steady(index: int, body: dict[str, Any], *, first=0.5, gap=0.1) -> AsyncIterator[bytes]:
    """One token after `first` seconds, then one every `gap`, and the end apart, as looped does."""
    await asyncio.sleep(first)
    for token in range(body["max_tokens"]):
        if token:
            await asyncio.sleep(gap)
        yield chunk(tokens=token + 1)
    yield chunk("", finish="length", tokens=body["max_tokens"])
    yield chunk(choices=[], tokens=body["max_tokens"]) + b"data: [DONE]\n\n"


class Stream(httpx.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


@dataclass
class FakeCompletions(httpx.AsyncBaseTransport):
    """Answers the n-th completion request with `answer(n, body)`, and keeps all bodies.

    `refuse` may return a response or raise instead, first.
    """

    answer: Answer = steady
    refuse: Callable[[int, dict[str, Any]], httpx.Response | None] = lambda index, body: None
    card: dict[str, Any] = field(default_factory=lambda: {"id": "fake", "vocab_size": 100})
    metrics: Callable[[], str] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [self.card]})
        if request.url.path == "/metrics":
            if self.metrics is None:
                return httpx.Response(404)
            return httpx.Response(200, text=self.metrics())
        assert request.url.path == "/v1/completions"
        body = json.loads(await request.aread())
        index = len(self.bodies)
        self.bodies.append(body)
        refusal = self.refuse(index, body)
        if refusal is not None:
            return refusal
        return httpx.Response(200, stream=Stream(self.answer(index, body)))
