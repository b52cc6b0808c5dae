"""The scheduler's half of each launch kind, and what a launch is made of where it is split."""

import copy
import pickle

import pytest
from scheduler_rig import request_of

from looped.sched import (
    LAUNCH_KINDS,
    PROGRAM_KINDS,
    Batch,
    Calls,
    InterfaceError,
    ItemKind,
    LaunchKind,
    ScheduledItem,
    SchedulerConfig,
    all_rungs,
    calls_of,
    head_bucket,
    ladders_for,
    launch_kind,
    rung_order,
)

RECURRENT, PREFILL, SCORE, HEAD = PROGRAM_KINDS
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 64, "max_model_len": 64}


def config_of(policy: str) -> SchedulerConfig:
    return SchedulerConfig(num_planes=4, vocab_size=9, **SIZES, policy=policy)


def batch_of(kind: LaunchKind, num_rows: int, num_passes: int = 1) -> Batch:
    request = request_of(prompt=(1,) * num_rows)
    item = ScheduledItem(request, ItemKind.PROMPT, 0, 0, num_rows)
    return Batch(kind, (item,), num_passes)


def test_a_kind_is_one_object_however_it_is_copied() -> None:
    for kind in PROGRAM_KINDS:
        assert launch_kind(kind.name.lower()) is kind
        assert copy.deepcopy({"kind": kind})["kind"] is kind
        assert pickle.loads(pickle.dumps(kind)) is kind
        assert repr(kind) == f"LaunchKind.{kind.name}"
    with pytest.raises(KeyError):
        launch_kind("HEAD")


def test_what_each_kind_says_of_itself() -> None:
    kinds = {
        kind: (kind.is_launched, kind.runs_layers, kind.carries_decode, kind.brings_scores)
        for kind in PROGRAM_KINDS
    }
    assert kinds == {
        RECURRENT: (True, True, True, False),
        PREFILL: (True, True, False, False),
        SCORE: (True, False, False, True),
        HEAD: (False, False, False, False),
    }
    assert LAUNCH_KINDS == (RECURRENT, PREFILL, SCORE), "a head follows, and is no launch"
    assert [kind.stand_in for kind in PROGRAM_KINDS] == [RECURRENT, RECURRENT, HEAD, HEAD]


@pytest.mark.parametrize(("num_heads", "bucket"), [(0, 0), (1, 2), (3, 4), (8, 8)])
def test_a_head_is_padded_to_a_rung_of_its_own(num_heads: int, bucket: int) -> None:
    items = tuple(
        ScheduledItem(
            request_of(str(index)), ItemKind.DECODE, 0, 3, 1, passes_to_head=int(index < num_heads)
        )
        for index in range(8)
    )
    batch = Batch(RECURRENT, items)
    assert batch.head_items == items[:num_heads]
    assert head_bucket(batch, ladders_for(config_of("mixed"))) == bucket
    assert batch.is_read == (num_heads > 0)


def test_a_prompt_item_has_a_head_where_its_passes_end() -> None:
    item = ScheduledItem(request_of(), ItemKind.PROMPT, 2, 0, 3, passes_to_head=2)
    assert Batch(RECURRENT, (item,)).head_items == ()
    assert Batch(PREFILL, (item,), num_passes=2).head_items == (item,)


def test_ladders_are_in_the_order_that_logs_have() -> None:
    assert list(ladders_for(config_of("atomic"))) == [RECURRENT, SCORE, HEAD, PREFILL]
    assert list(ladders_for(config_of("separate"))) == [RECURRENT, SCORE, HEAD]
    assert all_rungs(ladders_for(config_of("atomic"), is_deterministic=True)) == [
        (RECURRENT, 64),
        (SCORE, 64),
        (HEAD, 8),
    ]
    rungs = all_rungs(ladders_for(config_of("atomic")))
    assert [kind for kind, _ in sorted(rungs, key=rung_order)] == sorted(
        (kind for kind, _ in rungs), key=PROGRAM_KINDS.index
    )


@pytest.mark.parametrize(
    ("is_deterministic", "batch", "calls"),
    [
        (False, batch_of(PREFILL, 33, num_passes=4), Calls(PREFILL, 64, 1)),
        (True, batch_of(PREFILL, 33, num_passes=4), Calls(RECURRENT, 64, 4)),
        (False, batch_of(RECURRENT, 5), Calls(RECURRENT, 8, 1)),
        (True, batch_of(RECURRENT, 5), Calls(RECURRENT, 64, 1)),
        (False, batch_of(SCORE, 3), Calls(SCORE, 57, 1)),
    ],
)
def test_several_passes_are_calls_of_the_single_one_where_they_have_no_bucket(
    is_deterministic: bool, batch: Batch, calls: Calls
) -> None:
    ladders = ladders_for(config_of("atomic"), is_deterministic=is_deterministic)
    assert calls_of(batch, ladders) == calls
    assert batch.launch.called_kind(calls.num_calls) is calls.kind


def test_more_rows_than_the_widest_bucket_are_refused() -> None:
    with pytest.raises(InterfaceError, match=r"expected 1\.\.64 rows"):
        calls_of(batch_of(RECURRENT, 65), ladders_for(config_of("mixed")))
