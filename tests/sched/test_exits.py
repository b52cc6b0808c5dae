"""Exit options, rules, predicates and the decision."""

import itertools
import math

import pytest

from looped.sched import (
    ExitDecision,
    ExitMode,
    ExitOptions,
    ExitRule,
    InterfaceError,
    RequestError,
    decide,
    is_deciding,
    resolve_exit,
)
from looped.sched.exits import RowState, leaves_after, possible_states

NOTHING = ExitOptions()


def rule_of(mode: ExitMode, threshold: float, min_loops: int, max_loops: int) -> ExitRule:
    options = ExitOptions(mode=mode, threshold=threshold, min_loops=min_loops, max_loops=max_loops)
    return resolve_exit(options, NOTHING, 4)


def exit_loop(rule: ExitRule, signals: dict[int, float], output_index: int = 1) -> int:
    """Run one token through its loops."""
    is_pending = False
    for loop in itertools.count(1):
        decision = decide(rule, loop, signals.get(loop), is_pending, output_index)
        if decision is ExitDecision.EXIT:
            return loop
        is_pending = decision is ExitDecision.EXIT_NEXT
    raise AssertionError


def test_without_options_a_token_runs_every_loop() -> None:
    rule = resolve_exit(NOTHING, NOTHING, 4)
    assert rule == ExitRule(mode=ExitMode.OURO, threshold=1.0, min_loops=2, max_loops=4)
    assert resolve_exit(NOTHING, NOTHING, 1).min_loops == 1


def test_an_explicit_option_wins_over_the_engines_default() -> None:
    defaults = ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.5, min_loops=3, max_loops=4)
    rule = resolve_exit(ExitOptions(threshold=0.25, max_loops=2), defaults, 4)
    assert (rule.mode, rule.threshold, rule.max_loops) == (ExitMode.OURO_DELAYED, 0.25, 2)
    assert rule.min_loops == 2, "a default is lowered to an explicit max_loops"


def test_a_trace_implies_its_mode_and_ignores_the_defaults() -> None:
    defaults = ExitOptions(mode=ExitMode.OURO, threshold=0.5, max_loops=2)
    rule = resolve_exit(ExitOptions(trace=(4, 1, 3)), defaults, 4)
    assert rule.mode is ExitMode.TRACE
    assert [exit_loop(rule, {}, index) for index in range(5)] == [4, 1, 3, 4, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ExitOptions(threshold=-0.1), r"threshold must be in \[0, 1\], got -0.1"),
        (ExitOptions(threshold=1.5), r"threshold must be in \[0, 1\], got 1.5"),
        (ExitOptions(threshold=math.nan), "threshold must be in .*, got nan"),
        (ExitOptions(max_loops=0), r"max_loops must be in 1..4 .*, got 0"),
        (ExitOptions(max_loops=5), r"max_loops must be in 1..4 .*, got 5"),
        (ExitOptions(min_loops=0), r"min_loops must be in 1..4 .*, got 0"),
        (ExitOptions(min_loops=3, max_loops=2), r"min_loops must be in 1..2 .*, got 3"),
        (ExitOptions(mode=ExitMode.TRACE), "needs a trace"),
        (ExitOptions(trace=()), "needs a trace"),
        (ExitOptions(mode=ExitMode.OURO, trace=(4,)), "needs exit mode trace, got mode ouro"),
        (ExitOptions(trace=(4,), threshold=0.5), "takes no threshold, got 0.5"),
        (ExitOptions(trace=(4,), min_loops=1), "takes no min_loops, got 1"),
        (ExitOptions(trace=(4,), max_loops=4), "takes no max_loops, got 4"),
        (ExitOptions(trace=(3, 4)), "must begin with 4, got 3"),
        (ExitOptions(trace=(4, 0)), r"entry 1 must be in 1..4, got 0"),
        (ExitOptions(trace=(4, 2, 5)), r"entry 2 must be in 1..4, got 5"),
    ],
)
def test_conflicts_and_values_out_of_range_are_refused(options: ExitOptions, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        resolve_exit(options, NOTHING, 4)


def test_deciding_loops_follow_their_definition_everywhere() -> None:
    lookahead = (ExitMode.RANDOM_LOOKAHEAD, ExitMode.LOOKAHEAD)
    adaptive = (ExitMode.OURO, ExitMode.OURO_DELAYED, *lookahead)
    for mode, low, high in itertools.product(adaptive, range(1, 5), range(1, 5)):
        if low > high:
            continue
        rule = rule_of(mode, 0.5, low, high)
        deciding = {
            ExitMode.OURO: range(low, high),
            ExitMode.OURO_DELAYED: range(low, high - 1),
            **dict.fromkeys(lookahead, range(max(1, low - 1), high - 1)),
        }[mode]
        for loop in range(1, 5):
            assert is_deciding(rule, loop, False) == (loop in deciding)
            assert not is_deciding(rule, loop, True)


def test_fixed_depth_and_trace_never_depend_on_a_signal() -> None:
    fixed = [rule_of(mode, 1.0, 1, 4) for mode in ExitMode if mode is not ExitMode.TRACE]
    for rule in [*fixed, resolve_exit(ExitOptions(trace=(4, 1)), NOTHING, 4)]:
        assert not any(is_deciding(rule, loop, False) for loop in range(1, 5))


def test_threshold_one_never_exits_early_whatever_the_signal() -> None:
    assert exit_loop(rule_of(ExitMode.OURO, 1.0, 1, 4), dict.fromkeys(range(1, 5), 1.0)) == 4
    nearly = rule_of(ExitMode.OURO, 1.0 - 1e-12, 1, 4)
    assert nearly.threshold == 1.0, "the nearest float32"


def test_float32_is_compared_with_float32() -> None:
    signal_of_point_two = 0.20000000298023224
    rule = rule_of(ExitMode.OURO, 0.2, 1, 4)
    assert exit_loop(rule, {1: signal_of_point_two}) == 1
    assert exit_loop(rule, {1: 0.19999998807907104, 2: 0.0, 3: 1.0}) == 3


@pytest.mark.parametrize(
    ("mode", "min_loops", "max_loops", "signals", "expected"),
    [
        (ExitMode.OURO, 1, 4, {1: 0.1, 2: 0.6}, 2),
        (ExitMode.OURO, 3, 4, {1: 0.9, 2: 0.9, 3: 0.9}, 3),
        (ExitMode.OURO, 1, 2, {1: 0.0}, 2),
        (ExitMode.OURO_DELAYED, 1, 4, {1: 0.6}, 2),
        (ExitMode.OURO_DELAYED, 2, 4, {1: 0.9, 2: 0.1}, 4),
        (ExitMode.OURO_DELAYED, 1, 4, {1: 0.1, 2: 0.5, 3: 0.0}, 3),
        (ExitMode.RANDOM_LOOKAHEAD, 2, 4, {1: 0.6}, 2),
        (ExitMode.RANDOM_LOOKAHEAD, 3, 4, {1: 0.9, 2: 0.5}, 3),
        (ExitMode.RANDOM_LOOKAHEAD, 1, 4, {1: 0.1, 2: 0.1}, 4),
    ],
)
def test_each_mode_leaves_at_its_own_loop(
    mode: ExitMode, min_loops: int, max_loops: int, signals: dict[int, float], expected: int
) -> None:
    assert exit_loop(rule_of(mode, 0.5, min_loops, max_loops), signals) == expected


def test_a_missing_signal_at_a_deciding_loop_is_an_interface_error() -> None:
    with pytest.raises(InterfaceError, match="expected a signal at loop 2"):
        exit_loop(rule_of(ExitMode.OURO, 0.5, 2, 4), {})


def test_a_nan_signal_does_not_exit() -> None:
    signals = dict.fromkeys(range(1, 4), math.nan)
    assert exit_loop(rule_of(ExitMode.OURO, 0.0, 1, 4), signals) == 4


def rules_of_four_planes() -> list[ExitRule]:
    """Every mode with every pair of bounds, fixed and not, and some traces."""
    modes = [mode for mode in ExitMode if mode is not ExitMode.TRACE]
    bounds = [(low, high) for high in range(1, 5) for low in range(1, high + 1)]
    rules = [
        rule_of(mode, threshold, low, high)
        for mode, threshold, (low, high) in itertools.product(modes, (0.5, 1.0), bounds)
    ]
    traces = [(4,), (4, 1), (4, 2, 4), (4, 3, 1, 2)]
    return rules + [resolve_exit(ExitOptions(trace=trace), NOTHING, 4) for trace in traces]


def outcomes_of(state: RowState, rule: ExitRule) -> list[tuple[ExitDecision, RowState]]:
    """What a pass can do to a row, by the decision on a signal below and above any threshold."""
    index, loop = state.output_index, state.loops_done + 1
    found = []
    for signal in (-1.0, 2.0):
        decision = decide(rule, loop, signal, state.is_exit_pending, index)
        is_next = decision is ExitDecision.EXIT_NEXT
        left = decision is ExitDecision.EXIT
        found.append(
            (decision, RowState(index + 1, 0, False) if left else RowState(index, loop, is_next))
        )
    return found


def test_possible_states_are_those_that_decisions_lead_to_and_no_others() -> None:
    """From the prompt's last loop on, for every rule, in every state that a row can come to."""
    num_open = 0
    for rule in rules_of_four_planes():
        seen, ahead = set(), {RowState(0, 3, False)}
        while ahead:
            state = ahead.pop()
            seen.add(state)
            decisions, after = zip(*outcomes_of(state, rule), strict=True)
            possible = possible_states([state], rule, 4)
            assert set(possible) == set(after)
            assert len(possible) == len(set(after)), "each once"
            assert (len(possible) > 1) == is_deciding(
                rule, state.loops_done + 1, state.is_exit_pending
            )
            leaves = {decision is ExitDecision.EXIT for decision in decisions}
            assert leaves_after(state, rule, 4) is (leaves.pop() if len(leaves) == 1 else None)
            ahead |= {each for each in after if each.output_index < 6} - seen
            num_open += len(possible) > 1
        together = possible_states(sorted(seen), rule, 4)
        assert set(together) == {each for s in seen for _, each in outcomes_of(s, rule)}
        assert rule.threshold < 1 or not any(state.is_exit_pending for state in seen)
    assert num_open > 100
