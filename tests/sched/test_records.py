"""A record that lacks something, or says what no exit rule allows, is refused; nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from scheduler_rig import ADAPTIVE, FULL_DEPTH, NUM_PLANES, request_of, rig
from stub_executor import Driver, StubExecutor, StubPayload, check_drained, check_invariants

from looped.sched import (
    Batch,
    ExitMode,
    ExitOptions,
    ExitRule,
    FinishReason,
    HeadResult,
    InterfaceError,
    ItemKind,
    LaunchResult,
    PromptScoring,
    Request,
    RowStatus,
    Scheduler,
    ScoreResult,
    resolve_exit,
)

LATE = resolve_exit(ExitOptions(threshold=0.5, min_loops=3), ExitOptions(), NUM_PLANES)
DELAYED = resolve_exit(
    ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.5, min_loops=1), ExitOptions(), NUM_PLANES
)
SHALLOW = resolve_exit(ExitOptions(max_loops=2), ExitOptions(), NUM_PLANES)


def head_of(status: RowStatus, loops: int) -> LaunchResult:
    """What a head might say of one row."""
    return LaunchResult(HeadResult([status], [loops], [1], [0.0], [True]))


def snapshot(scheduler: Scheduler, executor: StubExecutor) -> object:
    """All that a record could change."""
    requests = [
        [repr(getattr(request, field.name)) for field in fields(Request)]
        for request in scheduler.active_requests
    ]
    held = scheduler.num_used_blocks, scheduler.num_cached_blocks, len(executor.outstanding)
    return requests, held, scheduler.num_in_flight, scheduler.num_active


def refuse(
    scheduler: Scheduler, executor: StubExecutor, batch: Batch, wrong: LaunchResult, message: str
) -> None:
    """Check that a record is refused and has changed nothing."""
    before = snapshot(scheduler, executor)
    with pytest.raises(InterfaceError, match=message):
        scheduler.apply(batch, wrong)
    assert snapshot(scheduler, executor) == before
    check_invariants(scheduler)


def decoding(*rules: ExitRule, policy: str = "mixed") -> tuple[Scheduler, Driver]:
    """Rows at depth 0 of their second tokens, one of each rule."""
    scheduler, driver = rig(policy=policy)
    requests = [
        request_of(str(index), max_tokens=9, exit_rule=rule, payload=StubPayload(index))
        for index, rule in enumerate(rules)
    ]
    for request in requests:
        scheduler.add(request)
    while not all(request.output_token_ids for request in requests):
        driver.step()
    return scheduler, driver


def launched(scheduler: Scheduler) -> Batch:
    """The next launch."""
    batch = scheduler.schedule()
    assert batch is not None
    return batch


WRONG_HEADS: dict[str, Callable[[HeadResult], HeadResult | None]] = {
    "no head": lambda head: None,
    "an entry too few": lambda head: HeadResult(
        head.statuses[:1], head.loops[:1], head.token_ids[:1], head.logprobs[:1], head.is_finite[:1]
    ),
    "an entry too many": lambda head: HeadResult(
        [*head.statuses] * 2, [*head.loops] * 2, [1] * 4, [0.0] * 4, [True] * 4
    ),
    "a status too few": lambda head: replace(head, statuses=head.statuses[:1]),
    "loops too many": lambda head: replace(head, loops=[1, 1, 1]),
    "no tokens": lambda head: replace(head, token_ids=[]),
    "no log-probabilities": lambda head: replace(head, logprobs=[]),
    "no word on finiteness": lambda head: replace(head, is_finite=[]),
    "top N of one": lambda head: replace(head, top_logprobs=[None]),
    "gates of one": lambda head: replace(head, gates=[(0.5,)]),
}


@pytest.mark.parametrize("wrong", WRONG_HEADS)
def test_a_head_result_has_one_entry_of_everything_for_each_row(wrong: str) -> None:
    scheduler, driver = decoding(ADAPTIVE, ADAPTIVE)
    batch = launched(scheduler)
    result = driver.executor.execute(batch)
    assert result.head is not None
    message = "expected a head result" if wrong == "no head" else "expected 2 entries in a head"
    bad = LaunchResult(WRONG_HEADS[wrong](result.head))
    refuse(scheduler, driver.executor, batch, bad, message)
    driver.pending.append((batch, result))
    driver.drain()
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize(
    ("status", "loops"),
    [
        (RowStatus.MASKED, 1),
        (RowStatus.LEAVES_NEXT, 1),
        *((status, loops) for status in (RowStatus.LEFT, RowStatus.STAYED) for loops in (0, 2, 5)),
    ],
)
def test_what_no_rule_allows_of_one_row_changes_nothing_for_the_others(
    status: RowStatus, loops: int
) -> None:
    """The row before it is told that it left, which is right and must not be half applied."""
    scheduler, driver = decoding(ADAPTIVE, ADAPTIVE)
    batch = launched(scheduler)
    result = driver.executor.execute(batch)
    assert result.head is not None
    head = HeadResult([RowStatus.LEFT, status], [1, loops], [1, 1], [0.0] * 2, [True] * 2)
    message = "token 1 of request '1': expected what its exit rule allows after loop 1, got"
    refuse(scheduler, driver.executor, batch, LaunchResult(head), message)
    driver.pending.append((batch, result))
    driver.drain()
    assert [request.finish_reason for request in driver.finished] == [FinishReason.LENGTH] * 2
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize("policy", ["mixed", "separate"])
@pytest.mark.parametrize(
    ("rule", "loop", "status"),
    [
        (ADAPTIVE, 4, RowStatus.STAYED),
        (LATE, 4, RowStatus.STAYED),
        (SHALLOW, 2, RowStatus.STAYED),
        (SHALLOW, 2, RowStatus.LEAVES_NEXT),
        (SHALLOW, 2, RowStatus.MASKED),
        (FULL_DEPTH, 4, RowStatus.STAYED),
        (DELAYED, 4, RowStatus.LEAVES_NEXT),
        (DELAYED, 4, RowStatus.STAYED),
        (resolve_exit(ExitOptions(trace=(4, 3)), ExitOptions(), 4), 3, RowStatus.STAYED),
    ],
)
def test_a_row_leaves_after_its_last_loop_whatever_is_said(
    rule: ExitRule, loop: int, status: RowStatus, policy: str
) -> None:
    scheduler, driver = decoding(rule, policy=policy)
    for done in range(1, loop + 1):
        batch = launched(scheduler)
        if done < loop and batch.head_items:
            scheduler.apply(batch, head_of(RowStatus.STAYED, done))
        elif done < loop:
            scheduler.apply(batch, LaunchResult())
    assert batch.head_items
    message = f"exit rule allows after loop {loop}"
    refuse(scheduler, driver.executor, batch, head_of(status, loop), message)
    refuse(scheduler, driver.executor, batch, head_of(RowStatus.LEFT, loop - 1), message)
    update = scheduler.apply(batch, head_of(RowStatus.LEFT, loop))
    assert [token.exit_depth for token in update.tokens] == [loop]


def test_a_row_does_not_leave_before_its_first_loop() -> None:
    """No head follows where it cannot leave; with launches out one may, for what it could be."""
    scheduler, driver = decoding(LATE)
    for _ in range(2):
        batch = launched(scheduler)
        early = head_of(RowStatus.LEFT, 1)
        refuse(scheduler, driver.executor, batch, early, "expected no head result of a RECURRENT")
        scheduler.apply(batch, LaunchResult())
    third, fourth, *rest = [launched(scheduler) for _ in range(5)]
    assert [bool(batch.head_items) for batch in (third, fourth, *rest)] == [True] * 2 + [
        False, True, True,
    ]  # fmt: skip
    scheduler.apply(third, head_of(RowStatus.STAYED, 3))
    scheduler.apply(fourth, head_of(RowStatus.LEFT, 4))
    scheduler.apply(rest[0], LaunchResult())
    early = head_of(RowStatus.LEFT, 2)
    refuse(scheduler, driver.executor, rest[1], early, "after loop 2, got LEFT after loop 2")
    scheduler.apply(rest[1], head_of(RowStatus.STAYED, 2))
    scheduler.apply(rest[2], head_of(RowStatus.LEFT, 3))


def test_a_pending_exit_that_a_record_has_told_of_is_kept() -> None:
    """Settled a loop ahead, and read: then the next record can say nothing else."""
    scheduler, driver = decoding(DELAYED)
    scheduler.apply(launched(scheduler), LaunchResult())
    second = launched(scheduler)
    assert second.head_items, "it was open whether its exit was pending"
    scheduler.apply(second, head_of(RowStatus.LEAVES_NEXT, 2))
    third = launched(scheduler)
    assert [item.is_exit_pending for item in third.items] == [True]
    for status in (RowStatus.STAYED, RowStatus.LEAVES_NEXT):
        refuse(scheduler, driver.executor, third, head_of(status, 3), "after loop 3")
    update = scheduler.apply(third, head_of(RowStatus.LEFT, 3))
    assert [token.exit_depth for token in update.tokens] == [3]


def test_the_first_token_comes_after_every_loop() -> None:
    scheduler, driver = rig(prefill_chunk_size=4)
    scheduler.add(request_of(exit_rule=ADAPTIVE))
    for depth in range(NUM_PLANES):
        batch = launched(scheduler)
        assert [item.kind for item in batch.items] == [ItemKind.PROMPT]
        if depth < NUM_PLANES - 1:
            early = head_of(RowStatus.LEFT, depth + 1)
            refuse(scheduler, driver.executor, batch, early, "expected no head result")
            scheduler.apply(batch, driver.executor.execute(batch))
    result = driver.executor.execute(batch)
    for status, loops in [*((status, 4) for status in RowStatus), (RowStatus.LEFT, 3)]:
        if (status, loops) != (RowStatus.LEFT, 4):
            wrong = head_of(status, loops)
            refuse(scheduler, driver.executor, batch, wrong, "token 0 of request 'a'")
    assert [token.exit_depth for token in scheduler.apply(batch, result).tokens] == [4]
    driver.drain()


def test_a_score_that_is_missing_or_too_much_is_refused() -> None:
    """A head follows the last score; both are looked at before either is applied."""
    scheduler, driver = rig()
    request = request_of(scoring=PromptScoring.LAST_LOOP)
    scheduler.add(request)
    for _ in range(NUM_PLANES):
        driver.step()
    batch = launched(scheduler)
    right = driver.executor.execute(batch)
    assert right.score is not None
    assert right.head is not None
    short = ScoreResult([0.0], [1], True)
    for wrong, message in (
        (LaunchResult(), "expected a head result of a SCORE launch"),
        (LaunchResult(head=right.head), "expected a score result of a SCORE launch"),
        (LaunchResult(score=right.score), "expected a head result of a SCORE launch"),
        (LaunchResult(right.head, short), "expected 2 entries in a score result"),
        (LaunchResult(replace(right.head, loops=[3]), right.score), "after loop 4"),
    ):
        refuse(scheduler, driver.executor, batch, wrong, message)
    assert request.prompt_scores == []
    scheduler.apply(batch, right)
    assert len(request.prompt_scores[0].logprobs) == 2
    driver.drain()


@pytest.mark.parametrize("num_out", [2, 3, 5])
def test_records_are_applied_in_the_order_of_their_launches(num_out: int) -> None:
    scheduler, driver = decoding(ADAPTIVE, FULL_DEPTH)
    batches = [launched(scheduler) for _ in range(num_out)]
    results = [driver.executor.execute(batch) for batch in batches]
    for index in range(num_out):
        for later in range(index + 1, num_out):
            message = "expected the oldest batch that is out, got a later one"
            refuse(scheduler, driver.executor, batches[later], results[later], message)
        scheduler.apply(batches[index], results[index])
        refuse(scheduler, driver.executor, batches[index], results[index], "oldest batch")
    driver.drain()
    check_drained(scheduler, driver.executor)


def test_what_a_record_says_of_a_request_that_has_ended_is_not_looked_at() -> None:
    """It may be anything: the row rode on after an end that the device did not know."""
    scheduler, driver = decoding(ADAPTIVE, ADAPTIVE)
    batch = launched(scheduler)
    result = driver.executor.execute(batch)
    assert result.head is not None
    scheduler.abort("0")
    statuses, loops = [RowStatus.MASKED, result.head.statuses[1]], [9, 1]
    update = scheduler.apply(
        batch, LaunchResult(replace(result.head, statuses=statuses, loops=loops))
    )
    assert all(token.request.request_id == "1" for token in update.tokens)
    driver.drain()
    check_drained(scheduler, driver.executor)
