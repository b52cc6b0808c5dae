"""Results are written while they grow, and whatever ends it."""

import pytest

from looped.simulation.sweeps.keeper import WRITE_EVERY, Keeper


def test_growing_results_are_written_now_and_then():
    now, written = [0.0], []
    with Keeper(written.append, clock=lambda: now[0]) as keeper:
        for _ in range(10):
            now[0] += WRITE_EVERY / 2
            keeper.grew()
        assert written == [False] * 5
    assert written == [False] * 5 + [True]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_there_is_when_it_ends_early_is_written_as_unfinished(error):
    written = []
    with pytest.raises(error), Keeper(written.append):
        raise error
    assert written == [False]
