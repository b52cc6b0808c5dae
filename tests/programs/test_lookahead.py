"""Exit mode `lookahead` at the door: each reason why it cannot serve, with what to do."""

import numpy as np
import pytest
from command_line import looped

from looped.convert import LookaheadGate
from looped.errors import UsageError
from looped.programs.lookahead import check_lookahead
from looped.sched import ExitMode

GATE = LookaheadGate(np.zeros((2, 8), np.float32), np.zeros(2, np.float32))
"""Of a model that was trained with P = 4."""


@pytest.mark.parametrize("num_loops", [3, 4])
def test_a_gate_with_a_head_for_every_deciding_loop_serves(num_loops):
    check_lookahead(ExitMode.LOOKAHEAD, GATE, num_loops)


@pytest.mark.parametrize(
    ("gate", "num_loops", "message"),
    [
        (None, 4, r"has no lookahead_gate\.safetensors; train them with `looped train lookahead`"),
        (GATE, 2, r"P = 2; run at least 3 loops"),
        (None, 2, r"P = 2; run at least 3 loops"),
        (GATE, 5, r"P = 5 with the 2 of lookahead_gate\.safetensors; run at most 4 loops"),
    ],
)
def test_what_is_missing_is_named(gate, num_loops, message):
    with pytest.raises(UsageError, match=message):
        check_lookahead(ExitMode.LOOKAHEAD, gate, num_loops)
    check_lookahead(ExitMode.RANDOM_LOOKAHEAD, gate, num_loops)


def test_a_model_run_with_two_loops_is_not_told_to_train_a_gate_that_it_has():
    command = ("generate", "What is 3 + 4?", "--exit-mode", "lookahead", "--num-loops", 2)
    done = looped(*command, check=False)
    assert (done.returncode, "P = 2" in done.stderr) == (2, True), done.stderr
    assert "looped train" not in done.stderr
