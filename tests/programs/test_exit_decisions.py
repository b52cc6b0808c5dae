"""Exits that the device decides are those of the rules, for any rule, signal and place."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from step_states import OPTIONS, PROGRESS

from looped.device.request_table import RowOptions, RowProgress, host_row, read_rows, write_rows
from looped.programs import exit_decisions
from looped.programs.exit_decisions import EXIT_MODES, after_pass
from looped.sched import ExitDecision, ExitMode, ExitOptions, decide, resolve_exit
from looped.sched.exits import round_to_float32

NUM_LOOPS = 4


class Gates:
    """Stands for model and look-ahead heads: every row brings its own logit and score."""

    def __init__(self, logits, scores):
        self.model = self.lookahead = self
        self.gate_logits = lambda rows: jnp.asarray(logits)
        self.scores = lambda rows, depths, is_trained: jnp.asarray(scores)


def rules_of(mode):
    if mode is ExitMode.TRACE:
        return [
            resolve_exit(ExitOptions(trace=(4, depth)), ExitOptions(), 4) for depth in range(1, 5)
        ]
    return [
        resolve_exit(
            ExitOptions(mode=mode, threshold=threshold, min_loops=low, max_loops=high),
            ExitOptions(),
            NUM_LOOPS,
        )
        for threshold, low, high in product((0.0, 0.3, 0.5, 0.8, 1.0), range(1, 5), range(1, 5))
        if low <= high
    ]


@pytest.mark.parametrize("mode", ExitMode)
def test_a_row_leaves_stays_or_leaves_next_as_its_rule_says(mode):
    rng = np.random.default_rng(EXIT_MODES.index(mode))
    cases = [
        (rule, loop, is_pending, index)
        for rule in rules_of(mode)
        for loop in range(1, rule.max_loops + 1)
        for is_pending in (False, True)
        for index in (1, 2)
        for _ in range(2)
    ]
    count = len(cases)
    logits = rng.normal(scale=2, size=count).astype(np.float32)
    scores = rng.random(count, np.float32)
    survival = rng.random(count, np.float32)
    progress, options, traced = [], [], []
    for number, (rule, loop, is_pending, index) in enumerate(cases):
        row = {"depth": loop - 1, "is_pending": is_pending, "survival": survival[number]}
        progress.append(host_row(RowProgress, **PROGRESS | row | {"num_outputs": index}))
        rows = {"exit_mode": EXIT_MODES.index(mode), "threshold": rule.threshold}
        rows |= {"min_loops": rule.min_loops, "max_loops": rule.max_loops}
        options.append(host_row(RowOptions, **OPTIONS | rows | {"trace_length": len(rule.trace)}))
        traced.append(rule.trace[index] if index < len(rule.trace) else 0)
    every = np.arange(count)
    after, leave = jax.jit(
        lambda: after_pass(
            Gates(logits, scores),  # type: ignore[arg-type]
            jnp.zeros((count, 1)),
            read_rows(RowProgress, jnp.asarray(progress), every),
            read_rows(RowOptions, jnp.asarray(options), every),
            jnp.asarray(traced),
        )
    )()
    seen = set()
    for number, (rule, loop, is_pending, index) in enumerate(cases):
        product_after = np.asarray(after.survival)[number]
        is_gate = mode in (ExitMode.OURO, ExitMode.OURO_DELAYED)
        signal = np.float32(1) - product_after if is_gate else scores[number]
        expected = decide(rule, loop, round_to_float32(signal), is_pending, index)
        got = ExitDecision.CONTINUE
        if after.is_leaving[number]:
            got = ExitDecision.EXIT
        elif after.is_pending[number]:
            got = ExitDecision.EXIT_NEXT
        assert got is expected, (rule, loop, is_pending, index, signal)
        before = 1.0 if loop == 1 else survival[number]
        np.testing.assert_allclose(
            product_after, before * (1 - np.asarray(leave)[number]), rtol=1e-6
        )
        assert after.depth[number] == loop
        seen.add(got)
    wanted = {ExitDecision.EXIT, ExitDecision.CONTINUE}
    is_delayed = mode not in (ExitMode.OURO, ExitMode.TRACE)
    assert seen == wanted | ({ExitDecision.EXIT_NEXT} if is_delayed else set())


def test_every_mode_has_a_number_of_its_own():
    assert sorted(EXIT_MODES) == sorted(ExitMode)
    assert EXIT_MODES[exit_decisions.TRACE] is ExitMode.TRACE


def test_rows_of_the_table_are_read_as_they_were_written():
    rng = np.random.default_rng(0)
    for cls in (RowProgress, RowOptions):
        values = {
            name: rng.random((3, width))
            if dtype == "float32"
            else rng.integers(0, 2**31, (3, width))
            for name, (dtype, width) in cls.COLUMNS.items()
        }
        rows = [
            host_row(cls, **{name: value[index] for name, value in values.items()})
            for index in range(3)
        ]
        table = jnp.asarray(np.stack(rows))
        read = read_rows(cls, table, jnp.asarray([2, 0]))
        for name, (dtype, width) in cls.COLUMNS.items():
            expected = values[name][[2, 0]].astype(dtype)
            np.testing.assert_array_equal(
                getattr(read, name), expected[:, 0] if width == 1 else expected
            )
        again = write_rows(jnp.zeros_like(table), jnp.asarray([2, 0]), read)
        np.testing.assert_array_equal(again[jnp.asarray([2, 0])], table[jnp.asarray([2, 0])])
        assert not again[1].any()
