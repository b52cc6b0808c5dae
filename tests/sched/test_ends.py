"""Ends while launches are out that nobody has read: aborts, failures, resets, publications."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenarios import exit_rules
from scheduler_rig import FULL_DEPTH, NUM_PLANES, request_of, rig
from stub_executor import (
    KNOWN_STOPS,
    VOCAB_SIZE,
    Driver,
    StubPayload,
    check_drained,
    check_invariants,
    token_of,
)
from whole_run import expected_output

from looped.sched import (
    NO_SLOT,
    ExitMode,
    ExitOptions,
    FinishReason,
    InterfaceError,
    PromptScoring,
    Request,
    Scheduler,
    Stage,
    resolve_exit,
)

AHEAD = (0, 1, 2, 3, 4)
DELAYED = resolve_exit(
    ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.5, min_loops=1), ExitOptions(), NUM_PLANES
)
LIVE = resolve_exit(ExitOptions(threshold=0.6, min_loops=1), ExitOptions(), NUM_PLANES)


def house(num_ahead: int, **options: object) -> tuple[Scheduler, Driver]:
    """A scheduler, and who drives it with launches ahead."""
    scheduler, driver = rig(**({"policy": "mixed"} | options))
    return scheduler, Driver(scheduler, driver.executor, num_ahead)


def hand_out(driver: Driver, count: int) -> None:
    """Have so many launches out at least, run and not read."""
    while len(driver.pending) < count:
        batch = driver.scheduler.schedule()
        assert batch is not None
        driver.pending.append((batch, driver.executor.execute(batch)))


def in_prompt(driver: Driver) -> Request:
    """A request whose prompt is half done."""
    request = request_of("a", prompt=tuple(range(12)), max_tokens=8)
    driver.scheduler.add(request)
    driver.step()
    return request


def in_score(driver: Driver) -> Request:
    """A request whose prompt is being scored."""
    request = request_of(
        "a", prompt=tuple(range(12)), max_tokens=8, scoring=PromptScoring.EVERY_LOOP
    )
    driver.scheduler.add(request)
    driver.step()
    return request


def in_tokens(driver: Driver) -> Request:
    """A request that has brought three tokens."""
    request = request_of("a", max_tokens=30, exit_rule=DELAYED)
    driver.scheduler.add(request)
    while len(request.output_token_ids) < 3:
        driver.step()
    return request


WHERE = {"prompt": in_prompt, "score": in_score, "tokens": in_tokens}


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("policy", ["mixed", "separate"])
def test_an_abort_gives_id_slot_blocks_and_places_back_at_once(
    policy: str, where: str, num_ahead: int
) -> None:
    """The pool is as large as one request, and there is one slot: who comes next has both."""
    scheduler, driver = house(num_ahead, policy=policy, max_num_seqs=1, num_blocks=80)
    old = WHERE[where](driver)
    hand_out(driver, num_ahead)
    brought, scores = list(old.output_token_ids), [list(s.logprobs) for s in old.prompt_scores]
    old_slot = old.slot
    assert scheduler.abort("a") is old
    assert (old.stage, old.finish_reason, old.slot) == (
        Stage.FINISHED, FinishReason.ABORT, NO_SLOT,
    )  # fmt: skip
    assert scheduler.abort("a") is None, "once"
    assert scheduler.num_used_blocks == scheduler.num_active == 0
    assert not driver.executor.outstanding
    assert scheduler.num_in_flight == num_ahead
    new = request_of("a", prompt=tuple(range(20, 30)), max_tokens=30, payload=StubPayload(4))
    scheduler.add(new)
    batch = driver.step()
    assert batch is not None
    assert {item.request for item in batch.items} == {new}
    assert new.slot == old_slot
    driver.drain()
    assert old not in driver.finished, "the caller knows"
    assert old.output_token_ids == brought
    assert [scores.logprobs for scores in old.prompt_scores] == scores
    assert (new.output_token_ids, new.exit_depths) == expected_output(new, NUM_PLANES)[:2]
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_an_abort_changes_nothing_for_those_beside_it(num_ahead: int) -> None:
    scheduler, driver = house(num_ahead, max_num_seqs=8, num_blocks=400)
    requests = [
        request_of(str(index), max_tokens=12, exit_rule=rule, payload=StubPayload(index))
        for index, rule in enumerate((LIVE, DELAYED, FULL_DEPTH, LIVE))
    ]
    scheduler.add(*requests)
    for _ in range(9):
        driver.step()
    scheduler.abort("1")
    driver.drain()
    for request in (requests[0], *requests[2:]):
        assert request.finish_reason is FinishReason.LENGTH
        assert request.output_token_ids == expected_output(request, NUM_PLANES)[0]


def hidden_stops(*wanted: int) -> frozenset[int]:
    """Stop ids of which the device knows none that matters: it keeps the smallest."""
    drawn = {token_of(0, index, NUM_PLANES) for index in range(30)}
    unused = [token for token in range(min(wanted)) if token not in drawn][:KNOWN_STOPS]
    assert len(unused) == KNOWN_STOPS
    return frozenset((*unused, *wanted))


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_the_next_owner_of_a_slot_comes_behind_a_row_that_rode_on(num_ahead: int) -> None:
    """A stop id of the host alone: the row lives on for what is out, and its slot is taken."""
    scheduler, driver = house(num_ahead, max_num_seqs=1, num_blocks=80)
    first = request_of("a", max_tokens=20, stop=hidden_stops(token_of(0, 2, NUM_PLANES)))
    second = request_of("b", prompt=tuple(range(9)), max_tokens=9, payload=StubPayload(5))
    scheduler.add(first, second)
    driver.drain()
    assert first.finish_reason is FinishReason.STOP
    assert len(first.output_token_ids) == 3
    assert second.output_token_ids == expected_output(second, NUM_PLANES)[0]
    passes = NUM_PLANES * (first.num_prompt_tokens + 2)
    assert driver.executor.rows_run[first] == passes + num_ahead
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_a_batch_fails_once_those_before_it_are_applied(num_ahead: int) -> None:
    """What these brought is kept; requests that are not in it go on."""
    scheduler, driver = house(num_ahead, policy="separate", num_blocks=400)
    first = request_of("a", max_tokens=20, exit_rule=LIVE)
    scheduler.add(first)
    while len(first.output_token_ids) < 3:
        driver.step()
    hand_out(driver, num_ahead)
    num_before = len(first.output_token_ids)
    outside = request_of("b", payload=StubPayload(3))
    failing = scheduler.schedule()
    scheduler.add(outside)
    assert failing is not None
    if num_ahead:
        with pytest.raises(InterfaceError, match="expected the oldest batch that is out"):
            scheduler.fail_batch(failing, "no memory")
    while driver.pending:
        driver.apply_oldest()
    assert scheduler.fail_batch(failing, "no memory") == [first]
    assert (first.finish_reason, first.error) == (FinishReason.ERROR, "no memory")
    expected = expected_output(first, NUM_PLANES)[0]
    assert num_before <= len(first.output_token_ids) < 20
    assert first.output_token_ids == expected[: len(first.output_token_ids)]
    assert num_ahead < 4 or len(first.output_token_ids) > num_before, "those before it brought some"
    driver.drain()
    assert outside.finish_reason is FinishReason.LENGTH
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("where", WHERE)
def test_a_reset_forgets_what_is_out(where: str, num_ahead: int) -> None:
    scheduler, driver = house(num_ahead, max_num_seqs=1, num_blocks=80)
    active = WHERE[where](driver)
    waiting = request_of("b", prompt=tuple(range(9)), max_tokens=9, payload=StubPayload(5))
    scheduler.add(waiting)
    hand_out(driver, num_ahead)
    brought = list(active.output_token_ids)
    assert scheduler.reset("device lost") == [active]
    assert (active.finish_reason, active.error) == (FinishReason.ERROR, "device lost")
    assert scheduler.num_in_flight == scheduler.num_used_blocks == scheduler.num_cached_blocks == 0
    assert not driver.executor.outstanding
    for batch, result in driver.pending:
        with pytest.raises(InterfaceError, match="expected the oldest batch that is out"):
            scheduler.apply(batch, result)
    driver.pending.clear()
    driver.drain()
    assert active.output_token_ids == brought
    assert waiting.output_token_ids == expected_output(waiting, NUM_PLANES)[0]
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_places_are_free_when_the_last_depth_is_out_and_blocks_found_when_it_is_applied(
    num_ahead: int,
) -> None:
    scheduler, driver = house(num_ahead, policy="separate")
    request = request_of("a", prompt=(1, 2, 3, 4), max_tokens=4)
    scheduler.add(request)
    for depth in range(NUM_PLANES):
        assert bool(driver.executor.outstanding) == (depth > 0)
        batch = scheduler.schedule()
        assert batch is not None
        driver.pending.append((batch, driver.executor.execute(batch)))
    assert not driver.executor.outstanding
    assert (request.num_prefilled_tokens, request.num_written_tokens) == (4, 0)
    hand_out(driver, NUM_PLANES + num_ahead)
    for _ in range(NUM_PLANES):
        assert scheduler.num_cached_blocks == 0
        driver.apply_oldest()
    assert scheduler.num_cached_blocks == 2 * NUM_PLANES
    assert request.num_written_tokens == 4
    driver.drain()


@pytest.mark.parametrize("end", ["abort", "reset"])
@pytest.mark.parametrize("num_ahead", AHEAD)
def test_the_prefix_of_a_request_that_has_ended_is_not_published(num_ahead: int, end: str) -> None:
    scheduler, driver = house(num_ahead, policy="separate")
    scheduler.add(request_of("a", prompt=(1, 2, 3, 4), max_tokens=4))
    hand_out(driver, NUM_PLANES + num_ahead)
    for _ in range(NUM_PLANES - 1):
        driver.apply_oldest()
    if end == "abort":
        scheduler.abort("a")
        while driver.pending:
            driver.apply_oldest()
    else:
        scheduler.reset("lost")
        driver.pending.clear()
    assert scheduler.num_cached_blocks == 0
    twin = request_of("b", prompt=(1, 2, 3, 4), max_tokens=4, payload=StubPayload(1))
    scheduler.add(twin)
    driver.drain()
    assert twin.num_cached_tokens == 0
    check_drained(scheduler, driver.executor)


@st.composite
def crowds(draw: st.DrawFn) -> list[Request]:
    """Requests of every kind, some of them with stop ids that only the host knows."""
    return [
        request_of(
            str(index),
            prompt=tuple((index + 5 * i) % VOCAB_SIZE for i in range(draw(st.integers(1, 9)))),
            max_tokens=draw(st.integers(1, 7)),
            exit_rule=draw(exit_rules(NUM_PLANES)),
            payload=StubPayload(index, draw(st.sampled_from([None] * 5 + [1, 2]))),
            stop=frozenset(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=16))),
            scoring=draw(st.sampled_from([PromptScoring.NONE] * 3 + [PromptScoring.EVERY_LOOP])),
        )
        for index in range(draw(st.integers(1, 6)))
    ]


EVENTS = st.sampled_from(["step"] * 8 + ["abort", "fail", "reset"])


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    requests=crowds(),
    num_ahead=st.sampled_from(AHEAD),
    incremental_kv=st.booleans(),
    events=st.lists(EVENTS, max_size=40),
)
def test_whatever_ends_whoever_is_exact_and_gives_everything_back(
    requests: list[Request], num_ahead: int, incremental_kv: bool, events: list[str]
) -> None:
    scheduler, driver = house(
        num_ahead, max_num_seqs=3, num_blocks=120, incremental_kv=incremental_kv
    )
    scheduler.add(*requests)
    for number, event in enumerate(events):
        match event:
            case "abort":
                scheduler.abort(str(number % len(requests)))
            case "fail":  # before it reached the device, so that it wrote nothing
                while driver.pending:
                    driver.apply_oldest()
                if (batch := scheduler.schedule()) is not None:
                    scheduler.fail_batch(batch, "failed")
            case "reset":
                scheduler.reset("lost")
                driver.pending.clear()
            case _:
                driver.step()
        check_invariants(scheduler)
    driver.drain()
    check_drained(scheduler, driver.executor)
    for request in requests:
        tokens, depths, reason = expected_output(request, NUM_PLANES)
        count = len(request.output_token_ids)
        assert request.output_token_ids == tokens[:count]
        assert request.exit_depths == depths[:count]
        was_ended = request.finish_reason is FinishReason.ABORT or request.error in (
            "failed", "lost",
        )  # fmt: skip
        assert was_ended or (request.finish_reason is reason and count == len(tokens))
