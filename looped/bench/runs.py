"""One arm, once: what was asked of it, what it ran as, and its events in order."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

from looped.engine.events import LogEvent
from looped.record.timeline import Gap, Name, Timeline, Window

from .arms import ARMS, Arm
from .workload import BYSTANDER, DECODER, PROMPT, WorkItem, Workload


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How the engine of a run was built. All arms of a benchmark share every one of them."""

    num_planes: int
    """P."""
    max_num_batched_tokens: int
    """The budget."""
    max_num_seqs: int
    prefill_chunk_size: int
    block_size: int
    num_blocks: int
    """KV blocks over all planes."""
    dtype: str
    kv_dtype: str
    attention_backend: str
    exit_threshold: float
    """Whose recorded exits are replayed, or which is live."""
    exits: str
    """`replay`, `live`, or `full`: every token runs every loop."""
    run_ahead: int = 0
    """Launches that were under way before the record of the oldest was read, at most."""
    model: str = ""
    layers: str = ""
    """`unrolled` or `scanned`; empty in logs that were made before it was recorded."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run stands in the benchmark."""

    process: int
    round: int
    """Round of its process; all arms of a round make pairs."""
    position: int
    """Runs of its process before it."""


@dataclass(frozen=True, kw_only=True)
class EngineRun(ABC):
    """Events of one engine that served a known set of requests, of any benchmark."""

    place: Place
    options: RunOptions
    events: tuple[LogEvent, ...]
    num_backend_compilations: int = 0
    """Compilations of any kind that JAX counted while it ran."""

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self.events)

    @property
    @abstractmethod
    def items(self) -> list[WorkItem]:
        """The requests that it was given."""

    @property
    @abstractmethod
    def period(self) -> Window:
        """The measured period."""

    @property
    @abstractmethod
    def gaps(self) -> list[Gap]:
        """Gaps between tokens that are measured."""

    @property
    def seconds(self) -> float:
        """Length of the period."""
        return self.period.end - self.period.start

    def time_to_first_tokens(self, names: Sequence[Name]) -> list[float]:
        """TTFT of some requests: first visible token - arrival, seconds."""
        latencies = []
        for name in names:
            arrival, first = self.timeline.requests.get(name), self.timeline.first_token_time(name)
            if arrival is not None and first is not None:
                latencies.append(first - arrival.time)
        return latencies

    def times_per_output_token(self, names: Sequence[Name]) -> list[float]:
        """TPOT of some requests: (last token - first token) / (tokens - 1), seconds."""
        per_token = []
        for name in names:
            times = [token.time for token in self.timeline.tokens.get(name, ())]
            if len(times) > 1:
                per_token.append((times[-1] - times[0]) / (len(times) - 1))
        return per_token


@dataclass(frozen=True, kw_only=True)
class Run(EngineRun):
    """Events of one arm, with all that is needed to judge and to measure them."""

    arm: Arm
    workload: Workload

    @classmethod
    def from_log(cls, meta: dict[str, Any], events: tuple[LogEvent, ...]) -> Self:
        """A run out of a launch log that a worker wrote."""
        return cls(
            arm=ARMS[meta["arm"]],
            place=Place(**meta["place"]),
            options=RunOptions(**meta["options"]),
            workload=Workload.from_json(meta["workload"]),
            events=events,
            num_backend_compilations=meta["num_backend_compilations"],
        )

    def meta(self) -> dict[str, Any]:
        """What its launch log's header carries."""
        return {
            "arm": self.arm.name,
            "place": asdict(self.place),
            "options": asdict(self.options),
            "workload": self.workload.to_json(),
            "num_backend_compilations": self.num_backend_compilations,
        }

    def __str__(self) -> str:
        place = self.place
        return f"{self.arm.name} (process {place.process}, round {place.round})"

    @cached_property
    def items(self) -> list[WorkItem]:
        """The requests that it was given."""
        arm = self.arm
        return self.workload.items(has_decoders=arm.has_decoders, has_prompts=arm.has_prompts)

    def names(self, kind: str) -> list[Name]:
        """Its requests of a kind, in order."""
        return [(item.request_id, 0) for item in self.items if item.request_id.startswith(kind)]

    @cached_property
    def windows(self) -> list[Window]:
        """One per injected prompt: from its injection to its first visible token."""
        windows = []
        for name in self.names(PROMPT):
            arrival, first = self.timeline.requests.get(name), self.timeline.first_token_time(name)
            if arrival is not None and first is not None:
                windows.append(Window(arrival.time, first))
        return windows

    @cached_property
    def decoder_token_times(self) -> list[float]:
        """When each decoder token was visible, in order over all decoders."""
        tokens = self.timeline.tokens
        return sorted(token.time for name in self.names(DECODER) for token in tokens.get(name, ()))

    @cached_property
    def period(self) -> Window:
        """The measured period: from the point of the first injection to the last token.

        That point is the k-th committed decoder token, in D0 as well, so what remains to be done
        is the same in every arm with decoders. In P0 it is the first prompt's arrival.
        """
        timeline, times = self.timeline, self.decoder_token_times
        if self.arm.has_decoders:
            start = times[self.workload.first_injection - 1]
        else:
            start = min(request.time for request in timeline.requests.values())
        return Window(start, max(tokens[-1].time for tokens in timeline.tokens.values()))

    @cached_property
    def gaps(self) -> list[Gap]:
        """Decoders' gaps that begin in the period."""
        return [
            gap
            for name in self.names(DECODER)
            for gap in self.timeline.gaps(name)
            if gap.start >= self.period.start
        ]

    @cached_property
    def window_gaps(self) -> list[Gap]:
        """Those among them of which some part lies in a window."""
        return [gap for gap in self.gaps if any(window.overlaps(gap) for window in self.windows)]

    def first_token_latencies(self, kind: str) -> list[float]:
        """TTFT of its requests of a kind, seconds."""
        return self.time_to_first_tokens(self.names(kind))


__all__ = ["BYSTANDER", "DECODER", "PROMPT", "EngineRun", "Place", "Run", "RunOptions"]
