"""One request as its client saw it, and what follows from that alone."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Self

from looped.measure.statistics import percentile


class Failure(StrEnum):
    """What a request may end with instead of all its tokens."""

    NO_CONNECTION = "no connection"
    NO_SOCKET = "client out of sockets"
    """The client's own failure: the server was not asked."""
    REFUSED = "refused"
    """An answer with another status than 200."""
    BROKEN = "connection broken"
    TIMEOUT = "timeout"
    ERROR_EVENT = "error event"
    """The server said so within the stream."""
    MALFORMED = "malformed chunk"
    CUT_OFF = "no end of the stream"
    """The connection ended in order, but no finish reason came."""
    WRONG_LENGTH = "wrong length"
    """It ended with another number of tokens than it was asked for."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What users are promised."""

    ttft: float | None = None
    """Seconds to the first token at most; None: any."""
    itl: float | None = None
    """Seconds that the 99th percentile of a request's gaps may have; None: any."""

    def __str__(self) -> str:
        parts = (("TTFT", self.ttft), ("p99 of ITL", self.itl))
        return " and ".join(f"{name} <= {x:g} s" for name, x in parts if x is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """Times are seconds after the start of the run, on the client's clock."""

    index: int
    arrival: float
    """When it was due, whether the client was in time or not."""
    sent: float
    """When the client began to send it."""
    ended: float
    """When its last byte, or what ended it, was seen."""
    chunk_times: tuple[float, ...]
    """When each chunk that brought tokens was read."""
    prompt_tokens: int
    """As sent."""
    output_tokens: int
    """As the server counts them, or, where it does not, chunks that brought tokens."""
    usage: dict[str, int] | None = None
    """Whole numbers of the server's account, if it gives one."""
    failure: Failure | None = None
    detail: str = ""
    """What the server or the connection said."""

    @property
    def lag(self) -> float:
        """Seconds by which the client was late."""
        return self.sent - self.arrival

    @property
    def failure_kind(self) -> str | None:
        """What failures are counted by; a refusal with its status."""
        if self.failure is Failure.REFUSED:
            return f"{self.failure} ({self.detail.partition(':')[0]})"
        return self.failure

    @property
    def ttft(self) -> float | None:
        """First token visible - scheduled arrival; None without a token."""
        return self.chunk_times[0] - self.arrival if self.chunk_times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between one chunk that brought tokens and the next."""
        return [after - before for before, after in pairwise(self.chunk_times)]

    @property
    def tpot(self) -> float | None:
        """(last token - first token) / (tokens - 1); None for fewer than two."""
        if self.output_tokens < 2 or not self.chunk_times:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        """End - scheduled arrival."""
        return self.ended - self.arrival

    @property
    def normalised_latency(self) -> float | None:
        """Latency / output tokens; None without any."""
        return self.latency / self.output_tokens if self.output_tokens else None

    def meets(self, objective: Objective) -> bool:
        """Whether it ended well, began in time and had its 99th percentile of gaps in time.

        A request of one chunk has no gaps, and meets the second by its first.
        """
        if self.failure is not None or self.ttft is None:
            return False
        if objective.ttft is not None and self.ttft > objective.ttft:
            return False
        return objective.itl is None or not self.gaps or percentile(self.gaps, 99) <= objective.itl

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        failure = values["failure"] and Failure(values["failure"])
        return cls(**values | {"chunk_times": tuple(values["chunk_times"]), "failure": failure})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
