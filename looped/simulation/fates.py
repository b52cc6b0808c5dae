"""What became of recorded requests: the depths of their tokens, stops, and where a log is silent.

A launch of the LM head says after which loop each of its rows had left, even if nothing came of it.
A log that is cut, or ends in a fault, has requests under way: whether their last token had left the
loops by then, or was about to, only later lines would have told.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from looped.engine.events import AbortEvent, EndEvent, FaultEvent, LaunchEvent, RequestEvent
from looped.engine.records import ItemRecord, LaunchRecord
from looped.errors import LoopedError
from looped.record.timeline import Name
from looped.sched import (
    ExitMode,
    ExitRule,
    FinishReason,
    ItemKind,
    SimulatedOutput,
    Stage,
    is_deciding,
)

STOP_ID = 1
"""Stands for whatever ended a request with reason `stop`."""
OwnEvent = RequestEvent | AbortEvent | LaunchEvent | EndEvent | FaultEvent


@dataclass
class Fate:
    """What becomes of one request, gathered from the events after it."""

    rule: ExitRule
    depths: list[int] = field(default_factory=list)
    """Of tokens that left the loops."""
    launch_of_loop: dict[int, int] = field(default_factory=dict)
    """Of the token under way: in which launch each loop was completed."""
    is_over: bool = False
    is_stopped: bool = False
    num_tokens: int = 0

    def output(self) -> SimulatedOutput:
        """What a simulated executor has to bring."""
        token_ids = [0] * (self.num_tokens - 1) + [STOP_ID] if self.is_stopped else ()
        return SimulatedOutput(tuple(self.depths), tuple(token_ids))

    def launched(self, record: LaunchRecord, item: ItemRecord) -> None:
        """Takes in a launch that had the request."""
        if record.kind.draws_tokens:
            self.depths.append(item.depth + 1)
            self.launch_of_loop.clear()
        elif record.kind.runs_layers and item.kind is ItemKind.DECODE:
            self.launch_of_loop[item.depth + record.num_passes] = record.index

    def aborted(self, event: AbortEvent) -> None:
        """Takes in that it is to end."""
        # A token had left the loops, or was about to, and no launch brought it any more.
        if event.stage is Stage.CODA:
            self.depths.append(event.loops_done)
        elif event.is_exit_pending:
            self.depths.append(event.loops_done + 1)
        self.is_over = True

    def ended(self, event: EndEvent) -> None:
        """Takes in its end."""
        self.is_over = True
        if event.reason is FinishReason.STOP:
            self.is_stopped, self.num_tokens = True, event.num_tokens

    @property
    def unknown_from(self) -> float:
        """The first launch that may depend on what nothing tells; infinity if all is told."""
        if self.is_over or not self.launch_of_loop:
            return inf
        loops_ahead = 0 if self.rule.mode is ExitMode.OURO else 1
        last = max(self.launch_of_loop)
        undecided = [
            launch
            for loop, launch in self.launch_of_loop.items()
            # It stayed, or a later loop would not have been run.
            if loop + loops_ahead >= last and is_deciding(self.rule, loop, False)
        ]
        return min(undecided, default=inf) + 1


def fates_of(events: Iterable[OwnEvent]) -> list[Fate]:
    """The fate of each request, in the order of their lines; ids may come again.

    Raises:
        LoopedError: a line is about a request that no line before it brings.
    """
    fates: list[Fate] = []
    current: dict[Name, Fate] = {}
    for event in events:
        match event:
            case RequestEvent():
                fates.append(Fate(event.exit_rule))
                current[event.request_id, event.sample_index] = fates[-1]
            case LaunchEvent():
                for item in event.record.items:
                    fate = _of(current, (item.request_id, item.sample_index))
                    fate.launched(event.record, item)
            case AbortEvent():
                _of(current, (event.request_id, event.sample_index)).aborted(event)
            case EndEvent():
                _of(current, (event.request_id, event.sample_index)).ended(event)
    return fates


def missing_request(name: Name) -> LoopedError:
    """What is wrong with a log that lacks the line of a request."""
    return LoopedError(
        f"the log misses the line of request {name[0]!r}, sample {name[1]}; a replay needs a log "
        "from its start, with nothing left out"
    )


def _of(current: dict[Name, Fate], name: Name) -> Fate:
    if name not in current:
        raise missing_request(name)
    return current[name]
