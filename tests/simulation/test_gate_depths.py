"""Depths that follow from recorded gates are those of the exit rules."""

import numpy as np
import pytest

from looped.errors import UsageError
from looped.sched import ExitMode, ExitOptions, resolve_exit
from looped.simulation.loads.gate_depths import depths_of_request

NAN = [np.nan] * 4
GATES = np.array(
    [NAN, [0.6, 0.1, 0.1, 0.1], [0.3, 0.3, 0.1, 0.9], [0.1, 0.1, 0.1, 0.1]], np.float16
)
"""Probability to have left after each loop: 0.6; 0.3, 0.51; 0.1, 0.19, 0.271."""


def rule(mode=ExitMode.OURO, **options):
    return resolve_exit(ExitOptions(mode=mode, **options), ExitOptions(), 4)


@pytest.mark.parametrize(
    ("options", "depths"),
    [
        ({"threshold": 0.5, "min_loops": 1}, (4, 1, 2, 4)),
        ({"threshold": 0.5, "min_loops": 2}, (4, 2, 2, 4)),
        ({"threshold": 0.25, "min_loops": 1}, (4, 1, 1, 3)),
        ({"threshold": 0.25, "min_loops": 1, "max_loops": 2}, (4, 1, 1, 2)),
        ({"threshold": 1.0}, (4, 4, 4, 4)),
        ({"threshold": 0.5, "min_loops": 1, "mode": ExitMode.OURO_DELAYED}, (4, 2, 3, 4)),
    ],
)
def test_a_threshold_gives_the_loop_at_which_the_product_meets_it(options, depths):
    assert depths_of_request(GATES, rule(**options), 4) == depths


def test_gates_say_nothing_of_another_signal():
    with pytest.raises(UsageError, match="exit mode random_lookahead"):
        depths_of_request(GATES, rule(ExitMode.RANDOM_LOOKAHEAD, threshold=0.5), 4)
