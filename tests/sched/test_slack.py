"""Policy `slack`: prompt rows take the time that the most urgent decode row can spare."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from scheduler_rig import EMPTY_VIEW, FULL_DEPTH, NUM_PLANES
from stub_executor import VOCAB_SIZE, Driver, StubExecutor, StubPayload, check_drained

from looped.sched import (
    Batch,
    ConfigError,
    ItemKind,
    LaunchKind,
    LaunchWork,
    Policy,
    Request,
    ScheduledItem,
    Scheduler,
    SchedulerConfig,
    Stage,
    View,
    policy_named,
    slack_policy,
)

ROW, HEAD = 0.25, 1.0
"""Seconds of a row in a pass, and of an LM head."""
TARGET = 17.0
"""Leaves (17 - 1) / 4 = 4 seconds, 16 rows, to each loop of a token that has just begun."""


class ExactCosts:
    """Costs of real rows alone, so that tests can count."""

    def seconds(self, work: LaunchWork) -> float:
        """Return the seconds of a launch."""
        return work.num_rows * ROW if work.kind.runs_layers else HEAD


class BucketCosts:
    """Costs of padded rows."""

    def seconds(self, work: LaunchWork) -> float:
        """Return the seconds of a launch."""
        return work.bucket * ROW if work.kind.runs_layers else HEAD


SLACK = slack_policy(ExactCosts(), TARGET)


def decode(depth: int, newest: float = 0.0, *, is_pending: bool = False) -> ScheduledItem:
    request = Request(request_id="d", prompt_token_ids=(1,), max_tokens=9, exit_rule=FULL_DEPTH)
    request.newest_token_time = newest
    return ScheduledItem(
        request,
        ItemKind.DECODE,
        depth,
        first_position=1,
        count=1,
        output_index=1,
        is_exit_pending=is_pending,
    )


def prompt(count: int) -> ScheduledItem:
    return ScheduledItem(request_of(), ItemKind.PROMPT, 0, first_position=0, count=count)


def request_of(num_prompt: int = 60) -> Request:
    return Request(
        request_id="p", prompt_token_ids=(1,) * num_prompt, max_tokens=1, exit_rule=FULL_DEPTH
    )


def view_of(*decodes: ScheduledItem, prompts: tuple[int, ...] = (), now: float = 0.0) -> View:
    return replace(
        EMPTY_VIEW,
        now=now,
        max_num_batched_tokens=64,
        prefill_chunk_size=32,
        decode_items=decodes,
        prompt_items=tuple(map(prompt, prompts)),
        num_past_prompt=len(decodes),
    )


def prompt_rows(view: View, policy: Policy = SLACK) -> list[int]:
    """Sizes of the prompt items that it takes."""
    items = policy.take(view, Stage.RECURRENT).candidates
    assert items[: len(view.decode_items)] == view.decode_items
    return [item.count for item in items if item.kind is ItemKind.PROMPT]


def size(view: View, policy: Policy = SLACK) -> int:
    assert policy.item_size is not None
    return policy.item_size(view, request_of())


def test_the_slack_less_the_head_is_shared_over_the_loops_that_remain() -> None:
    """(17 - 1) seconds: 64 rows over 4 loops, and the decode row is one of 16."""
    assert size(view_of(decode(0))) == 15
    assert size(view_of(decode(2), now=8.0)) == 15
    assert size(view_of(decode(2), now=12.0)) == 7, "half the time that two loops had"
    assert size(view_of(decode(0), decode(0))) == 14, "both rows take time"
    assert size(view_of(decode(1), now=13.0)) == 3, "three loops share 3 seconds"
    assert size(view_of(decode(1, is_pending=True), now=13.0)) == 11, "one loop has all of them"


def test_where_no_time_seems_to_pass_the_loops_of_a_token_stay_within_the_target() -> None:
    """A host that reads nothing schedules all of them at once."""
    taken = [(1 + size(view_of(decode(depth)))) * ROW for depth in range(NUM_PLANES)]
    assert sum(taken) + HEAD <= TARGET
    chunks = [sum(prompt_rows(view_of(decode(d), prompts=(5,) * 9))) for d in range(NUM_PLANES)]
    assert chunks == [15] * NUM_PLANES
    assert size(view_of(decode(2), now=1.0)) == 15, "nor is it given what was left over"


def test_the_most_urgent_row_decides() -> None:
    urgent = decode(0, newest=-8.0)
    assert size(view_of(decode(3), urgent)) == 6, "2 seconds a loop: 8 rows, two of them decode"
    assert size(view_of(decode(3), decode(0))) == 14


def test_where_nothing_fits_the_size_is_that_for_fresh_tokens_and_else_a_chunk() -> None:
    assert size(view_of(decode(0), now=100.0)) == 15
    assert size(view_of(decode(0)), slack_policy(ExactCosts(), 1.5)) == 32
    assert size(view_of()) == 32, "nobody decodes"


def test_prompt_items_are_taken_in_order_while_time_allows() -> None:
    assert prompt_rows(view_of(decode(0), prompts=(10, 5, 1))) == [10, 5]
    assert prompt_rows(view_of(decode(0), prompts=(10, 6, 1))) == [10], "nobody is let past"
    assert prompt_rows(view_of(decode(0), prompts=(16, 1))) == [], "an item is never cut"
    assert prompt_rows(view_of(decode(0), prompts=(5,), now=30.0)) == [], "late already"


def test_the_budget_bounds_what_time_would_allow_and_without_decode_rows_it_is_all() -> None:
    rich = slack_policy(ExactCosts(), 1e9)
    assert prompt_rows(view_of(decode(0), prompts=(32, 31, 1)), rich) == [32, 31]
    assert prompt_rows(view_of(prompts=(32, 32)), slack_policy(ExactCosts(), 1e-9)) == [32, 32]


def test_rows_of_the_bucket_are_free() -> None:
    """A decode row alone is padded to 2; up to the next rung nothing changes."""
    policy = slack_policy(BucketCosts(), TARGET)
    assert size(view_of(decode(0)), policy) == 15, "16 is a rung"
    assert size(view_of(decode(0), now=1.0), policy) == 7, "15 rows would be padded to 16"


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf"), float("nan")])
def test_a_target_that_is_none_is_refused(target: float) -> None:
    with pytest.raises(ConfigError, match="target must be above 0 seconds, and finite"):
        slack_policy(ExactCosts(), target)


def test_by_name_it_reads_a_table_of_costs(tmp_path: Path) -> None:
    missing = (("target", "0.05"), ("costs", str(tmp_path / "costs.json")))
    with pytest.raises(ConfigError, match=r"policy slack: .*costs\.json"):
        policy_named("slack", missing)
    policy = policy_named("slack", (("target", "0.05"), ("costs", "ouro-1.4b-h200")))
    late = replace(view_of(decode(0), prompts=(5,)), now=1.0)
    assert policy.take(late, Stage.RECURRENT).candidates == late.decode_items


def drive(
    policy: Policy, num_prompt: int = 300, *, num_prompts: int = 1
) -> tuple[list[Batch], list[float], Request]:
    """Three decoders and long prompts; time is what launches and heads cost. Gaps of the oldest.

    The policy needs depths, so the host reads every launch before it makes the next.
    """
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=VOCAB_SIZE,
        num_blocks=4000,
        max_model_len=512,
        max_num_seqs=3 + num_prompts,
        max_num_batched_tokens=64,
        prefill_chunk_size=32,
        policy=policy,
    )
    executor, costs = StubExecutor(config), ExactCosts()
    driver = Driver(Scheduler(config, executor), executor)
    now, gaps, batches, last = 0.0, [], [], 0.0

    def step() -> None:
        nonlocal now, last
        num_tokens = len(oldest.output_token_ids)
        batch = driver.step(now)
        assert batch is not None
        batches.append(batch)
        passes = batch.num_passes if batch.launch.runs_layers else 0
        work = LaunchWork.of(
            batch.items, kind=batch.launch, num_passes=passes, bucket=batch.num_rows
        )
        now += costs.seconds(work) + (HEAD if batch.head_items else 0.0)
        if len(oldest.output_token_ids) > num_tokens:
            gaps.append(now - last)
            last = now

    decoders = [request_named(str(index), 1, 40) for index in range(3)]
    oldest = decoders[0]
    for request in decoders:
        driver.scheduler.add(request)
    while not all(request.output_token_ids for request in decoders):
        step()
    late, *others = [request_named(f"late {i}", num_prompt + 7 * i, 1) for i in range(num_prompts)]
    for request in (late, *others):
        driver.scheduler.add(request)
    del batches[:], gaps[:]
    last = now
    while driver.scheduler.has_unfinished_requests and oldest.stage is not Stage.FINISHED:
        step()
    driver.drain()
    check_drained(driver.scheduler, executor)
    return batches, gaps[1:], late


def request_named(name: str, num_prompt: int, max_tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=tuple(i % VOCAB_SIZE for i in range(num_prompt)),
        max_tokens=max_tokens,
        exit_rule=FULL_DEPTH,
        payload=StubPayload(len(name)),
    )


@pytest.mark.parametrize("num_prompts", [1, 3])
def test_gaps_stay_within_the_target_where_mixed_leaves_it_and_the_prompt_advances(
    num_prompts: int,
) -> None:
    _, mixed_gaps, _ = drive(policy_named("mixed"), num_prompts=num_prompts)
    batches, gaps, late = drive(slack_policy(ExactCosts(), TARGET), num_prompts=num_prompts)
    assert max(mixed_gaps) > 1.5 * TARGET
    assert max(gaps) <= TARGET
    with_prompts = [b for b in batches if late in [item.request for item in b.items]]
    assert len(with_prompts) > 4
    assert all(b.num_decode == 3 for b in with_prompts if b.launch is LaunchKind.RECURRENT)


def test_a_target_out_of_reach_leaves_prompts_to_aging() -> None:
    limit = 4 * NUM_PLANES * 4
    batches, _, late = drive(slack_policy(ExactCosts(), 1.5), num_prompt=30)
    passes = [batch for batch in batches if batch.launch.runs_layers]
    places = [i for i, b in enumerate(passes) if late in [item.request for item in b.items]]
    assert places[0] == limit
    assert {after - before for before, after in pairwise(places)} == {limit + 1}
