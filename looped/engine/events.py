"""What a launch log is made of: engines, requests that come and end, launches, and their tokens.

Times are seconds of one clock, from the same zero for all events of a log. Nothing here reads a
clock: `LaunchRecorder` does, and tests make events up. JAX is not needed to look at them.

Everything that decides what a Scheduler does next is here, so that a log can be replayed: its
configuration, and, in the order in which they happened, what it was told (requests, aborts) and
what the launches brought (exit depths, stops). A `FaultEvent` says where that ends.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from looped.sched import (
    ConfigError,
    ExitRule,
    FinishReason,
    Ladder,
    LaunchKind,
    Policy,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    Stage,
    TokenOutput,
)

from .records import LaunchRecord

PREFIX_KEY_DIGITS = 16
"""Of a block's key in the prefix cache: hexadecimal digits that are logged, enough to tell apart
all blocks of a log."""


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Who is meant from here on: every event up to the next of this type is of this engine.

    It comes before an engine's first request, and again where the events of several alternate.
    """

    time: float
    engine_index: int
    """Engines before it in the log; one that was built anew after a failure is another one."""
    launch_index: int
    """Its launches so far, those that are out included."""
    num_applied: int
    """Those of them that have been applied."""
    policy: str
    """Name of the policy that its scheduler asks."""
    is_deterministic: bool
    """Whether passes of a prefill launch are calls of their own, and buckets single."""
    records_gates: bool
    """Whether the gates of every token are read, for a record of them."""
    ladders: dict[LaunchKind, Ladder] = field(hash=False)
    """Row buckets of each kind of launch that it has."""
    config: dict[str, Any] = field(hash=False)
    """Every option of its SchedulerConfig, complete, by name; P is `num_planes`."""
    is_policy_object: bool = False
    """Whether the policy was given as an object: then its name does not say how it was made."""

    @classmethod
    def of(
        cls,
        scheduler: Scheduler,
        ladders: dict[LaunchKind, Ladder],
        *,
        engine_index: int,
        is_deterministic: bool,
        records_gates: bool,
    ) -> "EngineEvent":
        """Describes an engine before its first launch, at time 0."""
        config = scheduler.config
        options = [option.name for option in fields(config) if option.init]
        return cls(
            time=0.0,
            engine_index=engine_index,
            launch_index=0,
            num_applied=0,
            policy=scheduler.policy.name,
            is_deterministic=is_deterministic,
            records_gates=records_gates,
            ladders=dict(ladders),
            # As JSON has it; a policy that was given as an object goes by its name.
            config={name: getattr(config, name) for name in options}
            | {
                "policy": scheduler.policy.name,
                "policy_options": [list(pair) for pair in config.policy_options],
            },
            is_policy_object=scheduler.policy is not config.chosen_policy
            or not isinstance(config.policy, str),
        )

    def scheduler_config(self, policy: Policy | None = None) -> SchedulerConfig:
        """The configuration, built again.

        Args:
            policy: stands for the one that is named, which may not be installed here.

        Raises:
            ConfigError: this version, or this installation, does not know an option or the policy;
                or the policy was an object, and none stands for it.
        """
        if policy is None and self.is_policy_object:
            raise ConfigError(
                f"expected a policy that was given by name, got an object that calls itself "
                f"{self.policy!r}; say how it was made: --policy NAME:KEY=VALUE, or --policy NAME "
                "if it takes no options"
            )
        options = tuple(map(tuple, self.config.get("policy_options", ())))
        changes: dict[str, Any] = {"policy_options": options}
        if policy is not None:
            changes = {"policy": policy, "policy_options": ()}
        try:
            return SchedulerConfig(**self.config | changes)
        except TypeError as error:
            raise ConfigError(f"the log's scheduler has other options than ours: {error}") from None


@dataclass(frozen=True, slots=True)
class QueueLengths:
    """Requests by stage, as a launch left them."""

    waiting: int
    """Not admitted: without slot and blocks."""
    prefill: int
    """With a prompt that is not complete."""
    recurrent: int
    """Whose prompt has run: their rows ride."""

    @classmethod
    def of(cls, scheduler: Scheduler) -> "QueueLengths":
        """Counts a scheduler's requests."""
        stages = [request.stage for request in scheduler.active_requests]
        return cls(
            waiting=scheduler.num_waiting,
            prefill=stages.count(Stage.PREFILL),
            recurrent=stages.count(Stage.RECURRENT),
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
    launch_index: int
    """The launch before which the scheduler first saw it: launches of its engine so far."""
    num_applied: int
    """Those of them that had been applied."""
    priority: int
    exit_rule: ExitRule
    """Complete, a recorded trace included."""
    scoring: PromptScoring
    num_earlier_samples: int
    """Samples of its prompt that it may wait for: those with the sample indices below this."""
    prefix_keys: tuple[str, ...]
    """Of each full block of its prompt, what the prefix cache knows it by, shortened: equal keys
    mean equal prompts up to there. Empty without prefix caching."""

    @classmethod
    def of(
        cls, request: Request, *, time: float, launch_index: int, num_applied: int
    ) -> "RequestEvent":
        """Describes a request that was just added to a scheduler."""
        return cls(
            time=time,
            request_id=request.request_id,
            sample_index=request.sample_index,
            num_prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            launch_index=launch_index,
            num_applied=num_applied,
            priority=request.priority,
            exit_rule=request.exit_rule,
            scoring=request.scoring,
            num_earlier_samples=len(request.earlier_samples),
            prefix_keys=tuple(key.hex()[:PREFIX_KEY_DIGITS] for key in request.prefix_keys),
        )


@dataclass(frozen=True, slots=True)
class AbortEvent:
    """The scheduler was told to end a request, or one of its samples; a stop string does that, too.

    Its `EndEvent` follows at once. What launches that are out bring for it is dropped.
    """

    time: float
    request_id: str
    sample_index: int
    launch_index: int
    """Launches of its engine so far, those that are out included."""
    num_applied: int
    """Those of them that had been applied."""
    stage: Stage
    """Where it stood; in RECURRENT with a token that no launch brings any more."""
    loops_done: int
    """Loops that this token had run, as far as launches had been applied."""
    num_unread: int
    """Launches that were out with its row."""

    @classmethod
    def of(
        cls, request: Request, *, time: float, launch_index: int, num_applied: int
    ) -> "AbortEvent":
        """Describes a request that is about to be aborted."""
        return cls(
            time=time,
            request_id=request.request_id,
            sample_index=request.sample_index,
            launch_index=launch_index,
            num_applied=num_applied,
            stage=request.stage,
            loops_done=request.loops_done,
            num_unread=request.num_unread,
        )


@dataclass(frozen=True, slots=True)
class EndEvent:
    """A request, or one of its samples, ended."""

    time: float
    request_id: str
    sample_index: int
    launch_index: int
    """Launches of its engine so far, those that are out included."""
    num_applied: int
    """Those of them that had been applied, the one that ended it included."""
    reason: FinishReason
    num_tokens: int
    """Tokens that it emitted."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A launch failed, and has no line; what follows depends on more than the log says.

    Requests that it ended follow, with reason `error`. Without one of these before it, such an end
    means that logits were not finite, in the launch just before.
    """

    time: float
    launch_index: int
    """Launches of its engine so far, the failed one not counted."""
    num_applied: int
    """Those of them that had been applied; with a reset the others are lost."""
    is_reset: bool
    """Whether the device state was lost, and with it every active request and the prefix cache;
    otherwise the launch's own requests ended, before it reached the device."""
    message: str


@dataclass(frozen=True, slots=True)
class LaunchEvent:
    """One launch: what it carried, the host's moments around it, and what it brought.

    It is written when the launch is applied, up to `run_ahead` launches after it was dispatched.
    The device works on its own, and the host hears of a launch's end when it comes to apply it. A
    log made with `waits_for_device` waits for every launch right after its dispatch: then `ended`
    is the device's, and the run is slower.
    """

    record: LaunchRecord
    launch_index: int
    """Launches of its engine that had been dispatched by then, itself included."""
    scheduled: float
    """The scheduler was asked."""
    started: float
    """The packed batch was handed to the executable."""
    dispatched: float
    """The call had returned; the device works."""
    awaited: float
    """The host turned to it: from here on it waits, if the device is not done."""
    ended: float
    """The device was done, and what had to be read was on the host."""
    visible: float
    """The result was applied: the host could see the tokens."""
    queues: QueueLengths
    num_compilations: int
    """Steps compiled by the engine so far."""
    tokens: tuple[LoggedToken, ...]

    @property
    def host_wait(self) -> float:
        """Seconds that the host waited for the device: ended - awaited."""
        return self.ended - self.awaited


LogEvent = EngineEvent | RequestEvent | AbortEvent | LaunchEvent | EndEvent | FaultEvent
