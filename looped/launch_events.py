"""What a launch log is made of: requests that come and end, launches, and the tokens they bring.

Times are seconds of one clock, from the same zero for all events of a log. Nothing here reads a
clock: `LaunchRecorder` does, and tests make events up. JAX is not needed to look at them.
"""

from dataclasses import dataclass

from looped.sched import FinishReason, Scheduler, Stage, TokenOutput

from .records import LaunchRecord


@dataclass(frozen=True, slots=True)
class QueueLengths:
    """Requests by stage, as a launch left them."""

    waiting: int
    """Not admitted: without slot and blocks."""
    prefill: int
    """With a prompt that is not complete."""
    recurrent: int
    """With a token in the loops."""
    coda: int
    """With a row that is ready for the LM head."""

    @classmethod
    def of(cls, scheduler: Scheduler) -> "QueueLengths":
        """Counts a scheduler's requests."""
        stages = [request.stage for request in scheduler.active_requests]
        return cls(
            waiting=scheduler.num_waiting,
            prefill=stages.count(Stage.PREFILL),
            recurrent=stages.count(Stage.RECURRENT),
            coda=stages.count(Stage.CODA),
        )


@dataclass(frozen=True, slots=True)
class LoggedToken:
    """One token that a launch brought."""

    request_id: str
    sample_index: int
    output_index: int
    token_id: int
    exit_depth: int
    """Loops executed for it, 1-based."""

    @classmethod
    def from_output(cls, token: TokenOutput) -> "LoggedToken":
        return cls(
            token.request.request_id,
            token.request.sample_index,
            token.output_index,
            token.token_id,
            token.exit_depth,
        )


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """A request, or one of its samples, entered the queue."""

    time: float
    request_id: str
    sample_index: int
    num_prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class EndEvent:
    """A request, or one of its samples, ended."""

    time: float
    request_id: str
    sample_index: int
    reason: FinishReason
    num_tokens: int
    """Tokens that it emitted."""


@dataclass(frozen=True, slots=True)
class LaunchEvent:
    """One launch: what it carried, the host's moments around it, and what it brought.

    The device works on its own. A launch that the host does not read has no end that the host
    could see, so its `ended` is the moment at which the call returned, and its work shows in the
    wait of the next launch that is read. A log made with `waits_for_device` waits for every launch:
    then `ended` is the device's, and the run is slower.
    """

    record: LaunchRecord
    scheduled: float
    """The scheduler was asked."""
    started: float
    """The packed batch was handed to the executable."""
    dispatched: float
    """The call had returned; the device works."""
    ended: float
    """The result was on the host; `dispatched`, or barely later, for a launch that is not read."""
    visible: float
    """The result was applied: the host could see the tokens."""
    queues: QueueLengths
    num_compilations: int
    """Steps compiled by the engine so far."""
    tokens: tuple[LoggedToken, ...]

    @property
    def host_wait(self) -> float:
        """Seconds that the host waited in the readback: ended - dispatched; 0 without one."""
        return self.ended - self.dispatched if self.record.num_readbacks else 0.0


LogEvent = RequestEvent | EndEvent | LaunchEvent
