"""What results do: routing by each request's rule, prompt progress, KV growth, readbacks."""

from dataclasses import replace

import pytest
from scheduler_rig import ADAPTIVE, FULL_DEPTH, NUM_PLANES, request_of, rig
from stub_executor import (
    Driver,
)

from looped.sched import (
    Batch,
    ExitMode,
    ExitOptions,
    FinishReason,
    HeadResult,
    InterfaceError,
    ItemKind,
    LaunchKind,
    LaunchResult,
    RowStatus,
    Scheduler,
    ScoreResult,
    Stage,
    resolve_exit,
)


def in_the_loops(driver: Driver, scheduler: Scheduler) -> Batch:
    """Step until a decode row is scheduled; returns its batch, not executed."""
    while True:
        batch = scheduler.schedule()
        assert batch is not None
        if batch.num_decode:
            return batch
        scheduler.apply(batch, driver.executor.execute(batch))


def test_a_result_that_does_not_fit_changes_nothing() -> None:
    scheduler, driver = rig()
    request = request_of(exit_rule=ADAPTIVE)
    scheduler.add(request)
    batch = in_the_loops(driver, scheduler)
    assert batch.is_read
    result = driver.executor.execute(batch)
    assert result.head is not None
    score = ScoreResult([], [], True)
    for wrong, message in (
        (LaunchResult(), "expected a head result of a RECURRENT launch"),
        (LaunchResult(result.head, score), "expected no score result of a RECURRENT launch"),
        (LaunchResult(replace(result.head, loops=[1, 1])), "expected 1 entries in a head result"),
        (LaunchResult(replace(result.head, logprobs=[])), "expected 1 entries in a head result"),
        (LaunchResult(replace(result.head, loops=[2])), "allows after loop 1, got .* after loop 2"),
    ):
        with pytest.raises(InterfaceError, match=message):
            scheduler.apply(batch, wrong)
        assert (request.loops_done, request.num_unread) == (0, 1)
        assert scheduler.num_in_flight == 1
    driver.pending.append((batch, result))
    driver.drain()
    assert request.finish_reason is FinishReason.LENGTH


def test_each_request_is_routed_by_its_own_rule_within_one_launch() -> None:
    scheduler, driver = rig()
    trace = resolve_exit(ExitOptions(trace=(4, 1)), ExitOptions(), NUM_PLANES)
    shallow = resolve_exit(ExitOptions(max_loops=2), ExitOptions(), NUM_PLANES)
    delayed = resolve_exit(
        ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.5, min_loops=1),
        ExitOptions(),
        NUM_PLANES,
    )
    rules = (trace, shallow, FULL_DEPTH, ADAPTIVE, delayed)
    requests = [
        request_of(str(index), exit_rule=rule, max_tokens=2) for index, rule in enumerate(rules)
    ]
    for request in requests:
        scheduler.add(request)
    batch = in_the_loops(driver, scheduler)
    assert batch.num_decode == 5
    assert [item.request for item in batch.head_items] == [requests[0], requests[3]]
    head = HeadResult([RowStatus.LEFT] * 2, [1, 1], [7, 8], [0.0] * 2, [True] * 2)
    update = scheduler.apply(batch, LaunchResult(head))
    assert [token.request for token in update.tokens] == [requests[0], requests[3]]
    assert [request.stage is Stage.FINISHED for request in requests] == [
        True,
        False,
        False,
        True,
        False,
    ]
    following = scheduler.schedule()
    assert following is not None
    assert [item.request for item in following.head_items] == [requests[1], requests[4]]
    assert [item.is_exit_pending for item in following.items] == [False, False, None]


@pytest.mark.parametrize("policy", ["atomic", "separate"])
def test_a_prompt_item_runs_every_depth_and_the_next_one_follows(policy: str) -> None:
    scheduler, driver = rig(policy=policy)
    request = request_of(prompt=tuple(range(10)), max_tokens=1)
    scheduler.add(request)
    launches = []
    while request.stage is not Stage.FINISHED:
        batch = driver.step()
        assert batch is not None
        launches.append((batch.launch, batch.num_passes, batch.num_rows))
    sizes = (4, 4, 2)
    if policy == "atomic":
        assert launches == [(LaunchKind.PREFILL, 4, rows) for rows in sizes]
    else:
        assert launches == [(LaunchKind.RECURRENT, 1, rows) for rows in sizes for _ in range(4)]


def test_incremental_kv_grows_at_depth_0_only() -> None:
    scheduler, driver = rig(incremental_kv=True, policy="separate")
    request = request_of(prompt=tuple(range(9)), max_tokens=4)
    scheduler.add(request)
    lengths = []
    while scheduler.has_unfinished_requests:
        batch = scheduler.schedule()
        assert batch is not None
        lengths.append((batch.items[0].depth, len(request.block_tables[0])))
        scheduler.apply(batch, driver.executor.execute(batch))
    grown_at = {
        depth
        for (depth, after), (_, before) in zip(lengths[1:], lengths, strict=False)
        if after > before
    }
    assert grown_at == {0}
    assert [length for _, length in lengths[::4]][:3] == [2, 4, 5]


def test_a_launch_is_read_only_where_an_outcome_is_open() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of(max_tokens=3))
    driver.drain()
    assert driver.executor.num_reads == 3, "fixed depth: one a token"
    adaptive = request_of(max_tokens=3, exit_rule=ADAPTIVE)
    scheduler.add(adaptive)
    driver.drain()
    # The first token's launch; then each loop may be the last, from the first on.
    assert driver.executor.num_reads == 3 + 1 + sum(adaptive.exit_depths[1:])


def test_the_items_of_a_batch_say_what_its_rows_are() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of(prompt=(1, 2, 3), exit_rule=ADAPTIVE))
    prompt = scheduler.schedule()
    assert prompt is not None
    assert (prompt.num_rows, prompt.num_decode) == (3, 0)
    assert not prompt.is_read
    assert prompt.items[0].kind is ItemKind.PROMPT
    scheduler.apply(prompt, driver.executor.execute(prompt))
    decode = in_the_loops(driver, scheduler)
    assert (decode.num_rows, decode.num_decode) == (1, 1)
    assert decode.head_items == decode.items
    assert decode.is_read
