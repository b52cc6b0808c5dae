"""When a token leaves the loop: what a user may ask, what that means, and the decision itself.

`ExitOptions` is the question (None: the engine's default), `ExitRule` the complete answer.

The device decides, by the same rules (`looped.programs.exit_decisions`); `decide` is what they are
tested against. The Scheduler foresees: `possible_states` says what can have become of a row in
launches whose records it has not read. A *loop* is 1-based here: the number of passes executed
after the launch in question.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple, TypeVar

from .errors import InterfaceError, RequestError

T = TypeVar("T")


class ExitMode(StrEnum):
    """Where the exit of a generated token comes from."""

    OURO = "ouro"
    """The gate's cumulative exit probability reaches the threshold."""
    OURO_DELAYED = "ouro_delayed"
    """The same test, one loop ahead: the token leaves after the next loop."""
    RANDOM_LOOKAHEAD = "random_lookahead"
    """A frozen random head decides one loop ahead; a baseline for trained look-ahead gates."""
    LOOKAHEAD = "lookahead"
    """A head that was trained for it decides one loop ahead, by the same rules."""
    TRACE = "trace"
    """Recorded exit depths, one per output token."""


LOOKAHEAD_MODES = (ExitMode.RANDOM_LOOKAHEAD, ExitMode.LOOKAHEAD)
"""A head on the row after one loop says whether the token leaves after the next."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitOptions:
    """What a user asked of the exit; None leaves the choice to the engine."""

    mode: ExitMode | None = None
    """Where exits come from. None: `trace` if a trace is given, else the default."""
    threshold: float | None = None
    """Signal, in [0, 1], at which a token may leave. 1 never leaves early."""
    min_loops: int | None = None
    """Fewest loops of a generated token. None: the default, at most max_loops."""
    max_loops: int | None = None
    """Most loops of a generated token. None: the default."""
    trace: tuple[int, ...] | None = None
    """Loops of each output token, the first one P. Only with `trace`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExitRule:
    """A complete exit rule. Built by `resolve_exit`, which checks it."""

    mode: ExitMode
    """Where exits come from."""
    threshold: float
    """Holds a float32 value, because signals do; 1.0 for `trace`."""
    min_loops: int
    """Fewest loops of a generated token, 1..max_loops."""
    max_loops: int
    """Most loops of a generated token, at most P."""
    trace: tuple[int, ...] = ()
    """Loops of each output token; tokens past its end run max_loops. Empty but for `trace`."""


class ExitDecision(Enum):
    """What becomes of a decode row after a pass."""

    CONTINUE = auto()
    """Another loop, and nothing is settled."""
    EXIT_NEXT = auto()
    """Another loop, and the token leaves after it; what is read then changes nothing."""
    EXIT = auto()
    """The token leaves now."""


def round_to_float32(value: float) -> float:
    """Return the float32 nearest to `value`, as a Python float."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def resolve_exit(options: ExitOptions, defaults: ExitOptions, num_planes: int) -> ExitRule:
    """Complete a user's options with the engine's defaults.

    Where both are silent: mode `ouro`, threshold 1, max_loops P, min_loops min(2, max_loops).
    An explicit option is never bent to fit; a default min_loops is lowered to max_loops.

    Raises:
        RequestError: options that contradict each other or are out of range.
    """
    _check_types(options)
    implied = ExitMode.TRACE if options.trace is not None else defaults.mode
    try:
        mode = ExitMode(options.mode or implied or ExitMode.OURO)
    except ValueError:
        raise RequestError(
            f"exit mode must be one of {', '.join(ExitMode)}; got {options.mode!r}"
        ) from None
    if mode is ExitMode.TRACE:
        return _resolve_trace(options, defaults, num_planes)
    if options.trace is not None:
        raise RequestError(
            f"an exit trace needs exit mode trace, got mode {mode}; leave out one of the two"
        )
    threshold = _first_given(options.threshold, defaults.threshold, 1.0)
    if not 0.0 <= threshold <= 1.0:
        raise RequestError(
            f"exit threshold must be in [0, 1], got {threshold}; 1 never exits early"
        )
    max_loops = _first_given(options.max_loops, defaults.max_loops, num_planes)
    if not 1 <= max_loops <= num_planes:
        raise RequestError(
            f"max_loops must be in 1..{num_planes} (the loops of this model), got {max_loops}"
        )
    default_min_loops = min(_first_given(defaults.min_loops, 2), max_loops)
    min_loops = _first_given(options.min_loops, default_min_loops)
    if not 1 <= min_loops <= max_loops:
        raise RequestError(
            f"min_loops must be in 1..{max_loops} (max_loops), got {min_loops}; "
            "lower min_loops or raise max_loops"
        )
    return ExitRule(
        mode=mode,
        threshold=round_to_float32(threshold),
        min_loops=min_loops,
        max_loops=max_loops,
    )


def _check_types(options: ExitOptions) -> None:
    """Options come from JSON, too: a string or a truth value is not a number."""
    threshold = options.threshold
    if threshold is not None and type(threshold) not in (int, float):
        raise RequestError(f"exit threshold must be a number, got {threshold!r}")
    for name in ("min_loops", "max_loops"):
        value = getattr(options, name)
        if value is not None and type(value) is not int:
            raise RequestError(f"{name} must be a whole number, got {value!r}")
    if options.trace is not None and any(type(depth) is not int for depth in options.trace):
        raise RequestError("an exit trace must hold whole numbers")


def _resolve_trace(options: ExitOptions, defaults: ExitOptions, num_planes: int) -> ExitRule:
    for name in ("threshold", "min_loops", "max_loops"):
        value = getattr(options, name)
        if value is not None:
            raise RequestError(f"exit mode trace takes no {name}, got {value}; leave it out")
    trace = options.trace if options.trace is not None else defaults.trace
    if not trace:
        raise RequestError("exit mode trace needs a trace with one depth per output token")
    if trace[0] != num_planes:
        raise RequestError(
            f"an exit trace must begin with {num_planes}, got {trace[0]}: "
            "the first output token comes from the prompt, which runs every loop"
        )
    for index, depth in enumerate(trace):
        if not 1 <= depth <= num_planes:
            raise RequestError(f"exit trace entry {index} must be in 1..{num_planes}, got {depth}")
    return ExitRule(
        mode=ExitMode.TRACE, threshold=1.0, min_loops=1, max_loops=num_planes, trace=tuple(trace)
    )


def _first_given(*values: T | None) -> T:
    return next(value for value in values if value is not None)


def is_deciding(rule: ExitRule, loop: int, is_exit_pending: bool) -> bool:
    """Whether what the token does after `loop` depends on a signal.

    Everywhere else the outcome is fixed.
    """
    if rule.threshold >= 1.0 or is_exit_pending:
        return False
    if rule.mode is ExitMode.OURO:
        return rule.min_loops <= loop < rule.max_loops
    if rule.mode is ExitMode.OURO_DELAYED:
        return rule.min_loops <= loop < rule.max_loops - 1
    return rule.min_loops - 1 <= loop < rule.max_loops - 1


def decide(
    rule: ExitRule, loop: int, signal: float | None, is_exit_pending: bool, output_index: int
) -> ExitDecision:
    """Decide what the row of output token `output_index` does after `loop`.

    Args:
        rule: the request's exit rule.
        loop: loops executed, 1-based.
        signal: float32 value: 1 - prod(1 - sigmoid(g)) for the Ouro modes,
            the head's score for the look-ahead modes. Looked at only where `is_deciding`.
        is_exit_pending: an earlier EXIT_NEXT.
        output_index: index of the token among the request's outputs.

    Raises:
        InterfaceError: no signal at a deciding loop.
    """
    if is_exit_pending or loop >= last_loop(rule, output_index):
        return ExitDecision.EXIT
    if not is_deciding(rule, loop, is_exit_pending):
        return ExitDecision.CONTINUE
    if signal is None:
        raise InterfaceError(f"expected a signal at loop {loop} of exit mode {rule.mode}, got none")
    if signal >= rule.threshold:
        return ExitDecision.EXIT if rule.mode is ExitMode.OURO else ExitDecision.EXIT_NEXT
    return ExitDecision.CONTINUE


def last_loop(rule: ExitRule, output_index: int) -> int:
    """Return the loops after which output token `output_index` leaves, whatever is read."""
    if output_index < len(rule.trace):
        return rule.trace[output_index]
    return rule.max_loops


class RowState(NamedTuple):
    """Where a decode row stands between two passes."""

    output_index: int
    """Index of the output token that its row leads to."""
    loops_done: int
    """Loops that it has run; a token that has left stands at 0 of the next."""
    is_exit_pending: bool
    """Whether it leaves after its next loop."""


def leaves_after(state: RowState, rule: ExitRule, num_planes: int) -> bool | None:
    """Whether a row leaves in its next pass; None where a signal decides in that pass."""
    index, loops_done, is_pending = state
    loop = loops_done + 1
    last = num_planes if index == 0 else last_loop(rule, index)
    if is_pending or loop >= last:
        return True
    if rule.mode is ExitMode.OURO and index > 0 and is_deciding(rule, loop, False):
        return None
    return False


def possible_states(
    states: Iterable[RowState], rule: ExitRule, num_planes: int
) -> tuple[RowState, ...]:
    """Return what can have become of a row after one more pass, given what it can be before it."""
    after: dict[RowState, None] = {}
    for state in states:
        leaves = leaves_after(state, rule, num_planes)
        if leaves is not False:
            after[RowState(state.output_index + 1, 0, False)] = None
        if leaves is not True:
            loop = state.loops_done + 1
            after[RowState(state.output_index, loop, False)] = None
            is_delayed = rule.mode is not ExitMode.OURO and state.output_index > 0
            if is_delayed and is_deciding(rule, loop, False):
                after[RowState(state.output_index, loop, True)] = None
    return tuple(after)
