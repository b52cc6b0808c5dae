"""The Scheduler's promises, one by one: the door, aborts, failures, launches that are out."""

from collections.abc import Callable

import pytest
from scheduler_rig import request_of, rig
from stub_executor import (
    StubPayload,
    check_drained,
    check_invariants,
    token_of,
)

from looped.sched import (
    NO_SLOT,
    ExitOptions,
    FinishReason,
    InterfaceError,
    LaunchResult,
    Request,
    RequestError,
    resolve_exit,
)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda: request_of("first"), "'first': expected an id of its own"),
        (lambda: request_of(prompt=()), "expected at least one prompt token, got none"),
        (lambda: request_of(prompt=(1, 50)), r"expected token ids in 0..49, got 50 at position 1"),
        (lambda: request_of(prompt=(-1, 3)), r"expected token ids in 0..49, got -1 at position 0"),
        (
            lambda: request_of(max_tokens=0),
            "max_tokens must be >= 1, or 0 where the prompt is scored; got 0",
        ),
        (lambda: request_of(prompt=(1,) * 60, max_tokens=5), r"60 \+ 5 > 64"),
        (lambda: request_of(prompt=(1,) * 30, max_tokens=4), r"at most 64 .* got 68 for 33 pos"),
        (
            lambda: request_of(exit_rule=resolve_exit(ExitOptions(), ExitOptions(), 5)),
            r"max_loops must be <= 4 .*, got 5",
        ),
    ],
)
def test_what_can_never_run_is_refused_and_the_queue_is_unharmed(
    bad: Callable[[], Request], message: str
) -> None:
    scheduler, driver = rig()
    first = request_of("first")
    scheduler.add(first)
    with pytest.raises(RequestError, match=message):
        scheduler.add(bad())
    assert scheduler.num_waiting == 1
    driver.drain()
    assert driver.finished == [first]
    assert first.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (lambda: request_of("other", max_tokens=0), "max_tokens must be >= 1"),
        (lambda: request_of("first"), "'first': expected an id of its own"),
    ],
)
def test_of_several_requests_all_are_queued_or_none(
    second: Callable[[], Request], message: str
) -> None:
    scheduler, driver = rig()
    first = request_of("first")
    with pytest.raises(RequestError, match=message):
        scheduler.add(first, second())
    assert scheduler.num_waiting == 0
    third = request_of("third")
    scheduler.add(third, first)  # neither was touched
    driver.drain()
    assert driver.finished == [third, first]


def test_the_largest_request_that_fits_runs() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of(prompt=(1,) * 30, max_tokens=3))
    driver.drain()
    check_drained(scheduler, driver.executor)


def test_a_request_object_runs_once() -> None:
    scheduler, driver = rig()
    request = request_of()
    scheduler.add(request)
    driver.drain()
    with pytest.raises(RequestError, match="expected a new Request"):
        scheduler.add(request)


def test_a_request_goes_through_its_stages_launch_by_launch() -> None:
    scheduler, driver = rig(policy="separate")
    request = request_of(prompt=(1, 2, 3, 4, 5))
    scheduler.add(request)
    seen = []
    while scheduler.has_unfinished_requests:
        batch = driver.step()
        assert batch is not None
        (item,) = batch.items
        seen.append(
            (batch.launch.name, item.kind.name, item.depth, item.first_position, item.count)
        )
    prompt = [("RECURRENT", "PROMPT", depth, 0, 4) for depth in range(4)]
    rest = [("RECURRENT", "PROMPT", depth, 4, 1) for depth in range(4)]
    token = [("RECURRENT", "DECODE", depth, 5, 1) for depth in range(4)]
    assert seen == [*prompt, *rest, *token]
    assert driver.executor.num_head_rows == 2
    assert request.exit_depths == [4, 4]
    assert request.slot == NO_SLOT


def test_the_last_token_and_its_reason_are_reported_once() -> None:
    scheduler, driver = rig()
    stop = token_of(0, 1, 4)
    request = request_of(max_tokens=9, stop=frozenset({stop}))
    scheduler.add(request)
    outputs = []
    while scheduler.has_unfinished_requests:
        batch = scheduler.schedule()
        assert batch is not None
        update = scheduler.apply(batch, driver.executor.execute(batch))
        outputs += update.tokens
    assert update.finished == [request]
    assert request.finish_reason is FinishReason.STOP
    assert [output.token_id for output in outputs] == request.output_token_ids
    assert [output.output_index for output in outputs] == [0, 1]
    assert outputs[-1].token_id == stop
    assert outputs[-1].logprob == request.logprobs[-1]


def test_the_next_launch_can_go_out_before_the_last_one_is_applied() -> None:
    """A prompt's next depth, too: launches run in order."""
    scheduler, driver = rig()
    first, second = request_of("a"), request_of("b", prompt=(7,) * 6)
    scheduler.add(first)
    scheduler.add(second)
    out = scheduler.schedule()
    assert out is not None
    assert {item.request for item in out.items} == {first, second}
    third = request_of("c", prompt=(9,))
    scheduler.add(third)
    ahead = scheduler.schedule()
    assert ahead is not None
    assert [(item.request, item.depth) for item in ahead.items] == [
        (first, 1),
        (second, 1),
        (third, 0),
    ]
    assert scheduler.num_in_flight == 2
    for batch in (out, ahead):
        scheduler.apply(batch, driver.executor.execute(batch))
    driver.drain()
    check_drained(scheduler, driver.executor)


def test_a_batch_is_applied_exactly_once_and_in_order() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of())
    batch, ahead = scheduler.schedule(), scheduler.schedule()
    assert batch is not None
    assert ahead is not None
    result, later = driver.executor.execute(batch), driver.executor.execute(ahead)
    with pytest.raises(InterfaceError, match="expected the oldest batch that is out"):
        scheduler.apply(ahead, later)
    scheduler.apply(batch, result)
    with pytest.raises(InterfaceError, match="expected the oldest batch that is out"):
        scheduler.apply(batch, result)
    with pytest.raises(InterfaceError, match="expected the oldest batch that is out"):
        scheduler.fail_batch(batch, "late")
    scheduler.apply(ahead, later)


def test_aborting_a_waiting_request_takes_it_out_of_the_queue() -> None:
    scheduler, driver = rig(max_num_seqs=1)
    first, second = request_of("a"), request_of("b")
    scheduler.add(first)
    scheduler.add(second)
    driver.step()
    assert scheduler.abort("b") is second
    assert second.finish_reason is FinishReason.ABORT
    assert scheduler.num_waiting == 0
    assert scheduler.abort("b") is None
    assert scheduler.abort("never seen") is None
    driver.drain()
    assert driver.finished == [first]


def test_an_abort_gives_everything_back_at_once_and_what_is_out_is_dropped() -> None:
    scheduler, driver = rig()
    request = request_of(prompt=tuple(range(9)))
    scheduler.add(request)
    batch = scheduler.schedule()
    assert batch is not None
    result = driver.executor.execute(batch)
    assert scheduler.abort("a") is request
    assert request.finish_reason is FinishReason.ABORT
    assert scheduler.num_used_blocks == 0
    assert not driver.executor.outstanding
    assert scheduler.has_unfinished_requests, "a launch is out"
    assert scheduler.schedule() is None
    update = scheduler.apply(batch, result)
    assert (update.finished, update.tokens) == ([], [])
    check_drained(scheduler, driver.executor)


def test_an_aborted_request_publishes_nothing_and_emits_nothing() -> None:
    scheduler, driver = rig()
    request = request_of(prompt=(1, 2, 3, 4))
    scheduler.add(request)
    for _ in range(3):
        driver.step()
    last_pass = scheduler.schedule()
    assert last_pass is not None
    assert last_pass.head_items
    result = driver.executor.execute(last_pass)
    scheduler.abort("a")
    update = scheduler.apply(last_pass, result)
    assert scheduler.num_cached_blocks == 0
    assert update.tokens == []
    assert request.output_token_ids == []


def test_late_results_never_touch_a_request_that_reuses_the_id() -> None:
    scheduler, driver = rig()
    old = request_of("a", prompt=(1, 2, 3))
    scheduler.add(old)
    batch = scheduler.schedule()
    assert batch is not None
    result = driver.executor.execute(batch)
    old_slot = old.slot
    scheduler.abort("a")
    new = request_of("a", prompt=(4, 5, 6, 7, 8), payload=StubPayload(1))
    scheduler.add(new)
    ahead = scheduler.schedule()
    assert ahead is not None
    assert [item.request for item in ahead.items] == [new]
    assert new.slot == old_slot, "launches run in order, so it can be had at once"
    later = driver.executor.execute(ahead)
    assert scheduler.apply(batch, result).finished == []
    scheduler.apply(ahead, later)
    driver.drain()
    assert driver.finished == [new]
    assert new.output_token_ids == [token_of(1, 0, 4), token_of(1, 1, 4)]
    check_drained(scheduler, driver.executor)


def test_a_failed_batch_ends_only_its_own_requests() -> None:
    scheduler, driver = rig(policy="separate")
    inside, aborted, outside = request_of("a"), request_of("b"), request_of("c")
    scheduler.add(inside)
    scheduler.add(aborted)
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.add(outside)
    scheduler.abort("b")
    assert scheduler.fail_batch(batch, "no memory") == [inside]
    assert (inside.finish_reason, inside.error) == (FinishReason.ERROR, "no memory")
    assert (aborted.finish_reason, aborted.error) == (FinishReason.ABORT, None)
    check_invariants(scheduler)
    driver.drain()
    assert driver.finished == [outside]
    check_drained(scheduler, driver.executor)


def test_a_reset_ends_the_active_and_keeps_the_waiting() -> None:
    scheduler, driver = rig(max_num_seqs=2)
    requests = [request_of(str(index), prompt=(index,) * 5) for index in range(3)]
    for request in requests:
        scheduler.add(request)
    for _ in range(5):
        driver.step()
    batch = scheduler.schedule()
    assert batch is not None
    assert scheduler.num_cached_blocks > 0
    assert scheduler.reset("device lost") == requests[:2]
    assert [request.error for request in requests] == ["device lost", "device lost", None]
    assert scheduler.num_cached_blocks == scheduler.num_used_blocks == scheduler.num_in_flight == 0
    assert not driver.executor.outstanding
    with pytest.raises(InterfaceError, match="expected the oldest batch that is out"):
        scheduler.apply(batch, LaunchResult())
    scheduler.add(request_of("0"))
    driver.drain()
    assert requests[2] in driver.finished
    check_drained(scheduler, driver.executor)


def test_non_finite_logits_end_the_request_and_withdraw_its_cached_blocks() -> None:
    scheduler, driver = rig()
    prompt = (1, 2, 3, 4, 5)
    bad = request_of(prompt=prompt, max_tokens=5, payload=StubPayload(0, non_finite_at=1))
    bystander = request_of("b", prompt=(9,) * 5)
    scheduler.add(bad)
    scheduler.add(bystander)
    driver.drain()
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error is not None
    assert "output token 1, got NaN or infinity" in bad.error
    assert len(bad.output_token_ids) == 1
    assert bystander.finish_reason is FinishReason.LENGTH
    for request, num_cached in ((request_of(prompt=prompt), 0), (request_of(prompt=(9,) * 5), 4)):
        scheduler.add(request)
        driver.drain()
        assert request.num_cached_tokens == num_cached
