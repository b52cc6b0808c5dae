"""Several samples of one prompt: the first computes it, the others wait and share it."""

import pytest
from scheduler_rig import NUM_PLANES, request_of, rig
from stub_executor import Driver, check_drained

from looped.sched import FinishReason, Request, RequestError, Stage

PROMPT = (1, 2, 3, 4, 5, 6, 7)
"""Three full blocks of two, and a token that is always computed again."""


def samples_of(count: int, prompt: tuple[int, ...] = PROMPT, name: str = "a") -> list[Request]:
    samples: list[Request] = []
    for index in range(count):
        earlier = tuple(samples)
        samples.append(request_of(name, prompt=prompt, earlier_samples=earlier, sample_index=index))
    return samples


def test_a_prompt_is_computed_once_for_all_samples() -> None:
    scheduler, driver = rig(max_num_seqs=8)
    samples = samples_of(4)
    for request in samples:
        scheduler.add(request)
    driver.drain()
    assert [request.num_cached_tokens for request in samples] == [0, 6, 6, 6]
    rows = [driver.executor.rows_run[request] for request in samples]
    decode_rows = NUM_PLANES  # one token is fed back
    assert rows == [7 * NUM_PLANES + decode_rows] + [NUM_PLANES + decode_rows] * 3
    check_drained(scheduler, driver.executor)


def test_samples_enter_as_soon_as_the_blocks_they_can_use_are_published() -> None:
    """The leader's last chunk may still run: nobody can start from its last token."""
    scheduler, driver = rig(prefill_chunk_size=2)
    leader, other = samples_of(2)
    scheduler.add(leader)
    scheduler.add(other)
    while other.stage is Stage.WAITING:
        driver.step()
    assert leader.stage is Stage.PREFILL
    assert leader.num_prefilled_tokens == 6


@pytest.mark.parametrize("num_ahead", [0, 1, 2, 4])
def test_samples_wait_until_the_launch_that_completes_the_prompt_is_applied(
    num_ahead: int,
) -> None:
    """When it is out the place is free and the slot is there; its blocks are published later."""
    scheduler, driver = rig(policy="mixed", max_num_seqs=8)
    driver = Driver(scheduler, driver.executor, num_ahead)
    leader, *others = samples_of(3)
    scheduler.add(leader, *others)
    while leader.num_prefilled_tokens < len(PROMPT):
        assert all(request.stage is Stage.WAITING for request in others)
        driver.step()
    num_later = 0
    while leader.num_written_tokens < len(PROMPT):
        assert all(request.stage is Stage.WAITING for request in others)
        assert not driver.executor.outstanding
        driver.step()
        num_later += 1
    assert num_later == num_ahead
    driver.step()
    assert all(request.stage is not Stage.WAITING for request in others)
    driver.drain()
    assert [request.num_cached_tokens for request in others] == [6, 6]
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize(
    ("options", "prompt"), [({"prefix_caching": False}, PROMPT), ({}, (1,)), ({}, (1, 2))]
)
def test_samples_with_nothing_to_share_do_not_wait(
    options: dict[str, bool], prompt: tuple[int, ...]
) -> None:
    scheduler, driver = rig(**options)
    for request in samples_of(3, prompt):
        scheduler.add(request)
    driver.step()
    assert scheduler.num_active == 3


def test_a_waiting_sample_is_skipped_and_collects_no_bypasses() -> None:
    """It does not count in the scan window either, and stops nobody at its bypass limit."""
    scheduler, driver = rig(admission_scan_limit=1, admission_bypass_limit=0, max_num_seqs=8)
    samples = samples_of(4)
    later = [request_of(f"later-{index}", prompt=(9,)) for index in range(3)]
    for request in [*samples, *later]:
        scheduler.add(request)
    for _ in range(4):
        driver.step()
    assert [request.stage is Stage.WAITING for request in samples] == [False, True, True, True]
    assert all(request.stage is not Stage.WAITING for request in later)
    assert [request.num_bypasses for request in samples] == [0] * 4
    driver.drain()


@pytest.mark.parametrize("end", ["abort", "fail", "reset"])
def test_samples_go_on_when_the_first_has_ended(end: str) -> None:
    """The next one computes the prompt in its place, and the others go on waiting for that."""
    scheduler, driver = rig()
    leader, other, *rest = samples_of(4)
    for request in (leader, other, *rest):
        scheduler.add(request)
    driver.step()
    if end == "abort":
        assert scheduler.abort("a") is leader
    elif end == "fail":
        batch = scheduler.schedule()
        assert batch is not None
        scheduler.fail_batch(batch, "no")
    else:
        scheduler.reset("no")
    driver.drain()
    assert other.finish_reason is FinishReason.LENGTH
    assert other.num_cached_tokens == 0
    assert [request.num_cached_tokens for request in rest] == [6, 6]
    check_drained(scheduler, driver.executor)


def test_samples_go_on_when_the_first_never_started() -> None:
    scheduler, driver = rig(max_num_seqs=1, policy="separate")
    blocker = request_of("blocker", prompt=PROMPT)
    scheduler.add(blocker)
    driver.step()
    leader, other = samples_of(2, (7, 6, 5, 4, 3))
    scheduler.add(leader)
    scheduler.add(other)
    driver.step()
    assert scheduler.abort("a") is leader
    driver.drain()
    assert other.finish_reason is FinishReason.LENGTH


def test_samples_enter_when_others_had_published_the_prompt_already() -> None:
    """The leader computes it again, since it came before; nothing new is published then."""
    scheduler, driver = rig(prefill_chunk_size=2)
    twin = request_of("twin", prompt=PROMPT)
    leader, other = samples_of(2)
    scheduler.add(twin)
    scheduler.add(leader)
    scheduler.add(other)
    driver.drain()
    assert other.num_cached_tokens == 6
    check_drained(scheduler, driver.executor)


def test_samples_share_an_id_and_end_one_by_one() -> None:
    scheduler, driver = rig(prefix_caching=False)
    leader, other = samples_of(2)
    scheduler.add(leader)
    scheduler.add(other)
    with pytest.raises(RequestError, match="an id of its own"):
        scheduler.add(request_of("a", sample_index=1))
    assert scheduler.unfinished_request("a", 1) is other
    assert scheduler.abort("a", 1) is other
    assert scheduler.unfinished_request("a") is leader
    driver.drain()
    assert leader.finish_reason is FinishReason.LENGTH
