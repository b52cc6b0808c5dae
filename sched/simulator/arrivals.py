"""When requests come to a simulated scheduler: at their times, or as earlier ones end."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..request import Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the moment at which it came; the scheduler sees it when a launch is over."""

    time: float
    """Seconds after the start."""
    request: Request


class Arrivals(Protocol):
    """Brings requests. Asked between launches, with a time that never goes back."""

    @property
    def next_time(self) -> float | None:
        """When the next one comes; None if none does before another has ended."""

    def due(self, now: float) -> Sequence[Arrival]:
        """Hand over those that have come by `now`, in order."""

    def ended(self, request: Request, now: float) -> None:
        """Hear that a request is over."""


class TimedArrivals:
    """An open loop: requests come at their times, whatever becomes of earlier ones.

    Args:
        arrivals: any order; those of one time stay in theirs.
    """

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._waiting = deque(sorted(arrivals, key=lambda arrival: arrival.time))

    @property
    def next_time(self) -> float | None:
        return self._waiting[0].time if self._waiting else None

    def due(self, now: float) -> Sequence[Arrival]:
        come = []
        while self._waiting and self._waiting[0].time <= now:
            come.append(self._waiting.popleft())
        return come

    def ended(self, request: Request, now: float) -> None:
        """Nothing follows from it."""


class ClosedArrivals:
    """A closed loop: so many requests are under way at any time, while there are any.

    Args:
        requests: in order; taken one by one, so there may be no end of them.
        concurrency: how many come at the start; each later one comes when another ends.
    """

    def __init__(self, requests: Iterable[Request], concurrency: int) -> None:
        self._unsent = iter(requests)
        self._come: deque[Arrival] = deque()
        for _ in range(concurrency):
            self._send(0.0)

    @property
    def next_time(self) -> float | None:
        return self._come[0].time if self._come else None

    def due(self, now: float) -> Sequence[Arrival]:
        come = list(self._come)
        self._come.clear()
        return come

    def ended(self, request: Request, now: float) -> None:
        self._send(now)

    def _send(self, now: float) -> None:
        if (request := next(self._unsent, None)) is not None:
            self._come.append(Arrival(now, request))
