"""What has been read of one streamed completion: when its tokens came, and how it ended."""

import asyncio
import json
from typing import Any

from .event_stream import EventStreamParser

LONGEST_DETAIL = 300
"""Characters of an error that are kept."""
DONE = "[DONE]"


class MalformedChunkError(Exception):
    """An event that is not what a completion's stream has."""


class Reading:
    """What has been read of one stream.

    A chunk brings as many tokens as the usage in it rises by. Where chunks have no usage, one
    brings a token unless it has no choices, or is the last one and its text is empty.

    Args:
        start: of the run, on the event loop's clock.
    """

    def __init__(self, start: float) -> None:
        self.chunk_times: list[float] = []
        self.usage: dict[str, int] | None = None
        self.error: str | None = None
        self.is_finished = False
        """Whether a finish reason came."""
        self._start = start
        self._events = EventStreamParser()

    @property
    def num_tokens(self) -> int:
        """Output tokens so far."""
        return (self.usage or {}).get("completion_tokens", len(self.chunk_times))

    def take(self, piece: bytes) -> None:
        """The next bytes, at the moment at which they are there; MalformedChunkError."""
        now = asyncio.get_running_loop().time() - self._start
        try:
            for data in self._events.feed(piece):
                if data != DONE:
                    self._take_chunk(json.loads(data), now)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedChunkError(f"{error!r} in {piece[:LONGEST_DETAIL]!r}") from None

    def _take_chunk(self, chunk: dict[str, Any], now: float) -> None:
        if "error" in chunk:
            self.error = self.error or json.dumps(chunk["error"])
            return
        before = self.num_tokens
        usage = chunk.get("usage")
        if usage is not None:
            self.usage = {name: value for name, value in usage.items() if type(value) is int}
        for choice in chunk["choices"]:
            is_last = choice.get("finish_reason") is not None
            self.is_finished = self.is_finished or is_last
            has_token = self.num_tokens > before if usage else bool(choice["text"] or not is_last)
            if has_token:
                self.chunk_times.append(now)
