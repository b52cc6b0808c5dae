"""Ladders of compiled row counts."""

import pytest

from looped.sched import (
    InterfaceError,
    SchedulerConfig,
    bucket_for,
    head_ladder,
    prefill_ladder,
    recurrent_ladder,
    score_ladder,
)


def test_the_recurrent_ladder_has_a_rung_for_the_common_mixed_launch() -> None:
    assert recurrent_ladder(256, 128, 16) == (2, 4, 8, 16, 32, 64, 128, 144, 256)
    assert recurrent_ladder(100, 93, 8) == (2, 4, 8, 16, 32, 64, 100)
    assert recurrent_ladder(64, 10, 4) == (2, 4, 8, 16, 32, 64)


def test_the_other_ladders_end_at_their_limit() -> None:
    assert head_ladder(16) == (2, 4, 8, 16)
    assert head_ladder(5) == (2, 4, 5)
    assert prefill_ladder(256) == (32, 64, 128, 256)
    assert prefill_ladder(20) == (20,)
    assert score_ladder(128) == (128,)


def test_no_ladder_goes_below_two_rows() -> None:
    assert recurrent_ladder(1, 1, 1) == (2,)
    assert head_ladder(1) == prefill_ladder(1) == score_ladder(1) == (2,)


def test_the_defaults_need_at_most_24_executables() -> None:
    config = SchedulerConfig(num_planes=4, vocab_size=100, num_blocks=4096, max_model_len=4096)
    budget = config.max_num_batched_tokens
    ladders = (
        recurrent_ladder(budget, config.chunk_size, config.max_num_seqs),
        head_ladder(config.max_num_seqs),
        prefill_ladder(budget),
        score_ladder(config.chunk_size),
    )
    assert sum(map(len, ladders)) <= 24


def test_a_launch_is_padded_to_the_lowest_rung_that_holds_it() -> None:
    ladder = (2, 4, 9)
    assert [bucket_for(ladder, rows) for rows in range(1, 10)] == [2, 2, 4, 4, 9, 9, 9, 9, 9]


@pytest.mark.parametrize("num_rows", [0, 10])
def test_rows_that_no_rung_holds_are_an_interface_error(num_rows: int) -> None:
    with pytest.raises(InterfaceError, match=f"expected 1..9 rows in a launch, got {num_rows}"):
        bucket_for((2, 4, 9), num_rows)
