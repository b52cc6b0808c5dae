"""What a policy passes over too often goes first, within every rule of a launch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_policies import NEWEST
from scheduler_rig import FULL_DEPTH, NUM_PLANES
from stub_executor import VOCAB_SIZE, Driver, StubExecutor, StubPayload, check_drained

from looped.sched import (
    POLICIES,
    Batch,
    LaunchKind,
    Policy,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    Selection,
    Stage,
    View,
)
from looped.sched.choice import aging

MIXED, SEPARATE, ATOMIC = (POLICIES[name] for name in ("mixed", "separate", "atomic"))
NUM_SEQS = 4
LIMIT = 4 * NUM_PLANES * NUM_SEQS


def rig(policy: Policy, **options: object) -> Driver:
    sizes = {
        "num_blocks": 8000,
        "max_model_len": 1024,
        "max_num_seqs": NUM_SEQS,
        "max_num_batched_tokens": 16,
        "prefill_chunk_size": 8,
        "policy": policy,
    }
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=VOCAB_SIZE,
        **(sizes | options),  # type: ignore[arg-type]
    )
    executor = StubExecutor(config)
    return Driver(Scheduler(config, executor), executor)


def add(driver: Driver, name: str, num_prompt: int = 1, max_tokens: int = 300) -> Request:
    request = Request(
        request_id=name,
        prompt_token_ids=tuple((i + ord(name[0])) % VOCAB_SIZE for i in range(num_prompt)),
        max_tokens=max_tokens,
        exit_rule=FULL_DEPTH,
        payload=StubPayload(len(name)),
    )
    driver.scheduler.add(request)
    return request


def until_decoding(driver: Driver, *names: str) -> list[Request]:
    requests = []
    for name in names:
        request = add(driver, name)
        while not request.output_token_ids:
            driver.step()
        requests.append(request)
    return requests


def passes(driver: Driver, number: int) -> list[Batch]:
    """So many launches that run layers."""
    found: list[Batch] = []
    while len(found) < number:
        batch = driver.step()
        assert batch is not None
        found += [batch] if batch.launch.runs_layers else []
    return found


def longest_gap(batches: list[Batch], request: Request) -> int:
    """The most launches in a row without a request."""
    gap = longest = 0
    for batch in batches:
        gap = 0 if request in [item.request for item in batch.items] else gap + 1
        longest = max(longest, gap)
    return longest


def test_a_decode_row_that_is_never_wanted_is_in_the_launch_after_the_limit() -> None:
    driver = rig(NEWEST)
    old, _ = until_decoding(driver, "old", "new")
    batches = passes(driver, 3 * LIMIT)
    assert longest_gap(batches, old) == LIMIT
    (taken,) = [b for b in batches[: LIMIT + 5] if old in [item.request for item in b.items]]
    assert taken.items[0].request is old
    assert taken.num_decode == 2, "the policy's own choice is still in it"


def test_without_aging_it_would_wait_for_the_end_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aging.Aging, "may_pass_over", lambda *_: False)
    driver = rig(NEWEST)
    old, _ = until_decoding(driver, "old", "new")
    assert longest_gap(passes(driver, 3 * LIMIT), old) == 3 * LIMIT


def test_several_that_are_overdue_go_by_how_often_they_were_passed_over() -> None:
    driver = rig(NEWEST, max_decode_rows=1)
    first, second, _ = until_decoding(driver, "first", "second", "third")
    batches = passes(driver, 2 * LIMIT)
    turns = [batch.items[0].request for batch in batches if batch.items[0].request is not _]
    assert turns[:2] == [first, second]
    assert all(batch.num_decode == 1 for batch in batches), "max_decode_rows holds for them, too"
    assert longest_gap(batches, first) <= LIMIT + 1
    assert longest_gap(batches, second) <= LIMIT + 1


@pytest.mark.parametrize("budget", [11, 16])
def test_an_overdue_prompt_displaces_other_prompts_and_keeps_the_budget(budget: int) -> None:
    """Mixed: three long prompts, of which the budget holds one beside a decode row, or two."""
    driver = rig(MIXED, max_num_batched_tokens=budget)
    until_decoding(driver, "decoder")
    oldest, middle, newest = (add(driver, name, 400, 1) for name in ("a", "b", "c"))
    batches = passes(driver, 3 * LIMIT)
    assert all(batch.num_rows <= budget for batch in batches)
    assert all(batch.num_decode == 1 for batch in batches), "nor does it displace a decode row"
    turns = [batch.items[1].request for batch in batches]
    assert turns.count(oldest) > 2 * LIMIT
    assert turns[LIMIT : LIMIT + 2] == [middle, newest]
    assert longest_gap(batches, middle) <= LIMIT + 1


@settings(max_examples=40, deadline=None)
@given(
    num_seqs=st.integers(2, 4),
    num_decoders=st.integers(1, 3),
    chunk_size=st.integers(1, 8),
    num_more_rows=st.integers(0, 16),
    max_decode_rows=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_under_mixed_no_launch_with_overdue_prompts_lacks_a_ready_decode_row(
    num_seqs: int,
    num_decoders: int,
    chunk_size: int,
    num_more_rows: int,
    max_decode_rows: int,
    seed: int,
) -> None:
    """At any budget: with room for several chunks, or just for the one of the guard."""
    num_decode_rows = min(max_decode_rows, num_seqs)
    driver = rig(
        MIXED,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=chunk_size + num_seqs - 1 + num_more_rows,
        prefill_chunk_size=chunk_size,
        max_decode_rows=num_decode_rows,
    )
    decoders = until_decoding(driver, *(str(i) for i in range(min(num_decoders, num_seqs - 1))))
    prompts = [add(driver, f"p{i}", 100 * (1 + (seed + i) % 3), 1) for i in range(4)]
    limit = 4 * NUM_PLANES * num_seqs
    gaps = dict.fromkeys(prompts, 0)
    for _ in range(4 * limit):
        num_ready = sum(request.stage is Stage.RECURRENT for request in decoders)
        batch = driver.step()
        assert batch is not None
        if batch.launch.runs_layers:
            assert batch.num_decode == min(num_ready, num_decode_rows)
            taken = {item.request for item in batch.items}
            waiting = [prompt for prompt in prompts if prompt.prompt_items]
            gaps = {prompt: 0 if prompt in taken else gaps[prompt] + 1 for prompt in waiting} | {
                prompt: 0 for prompt in prompts if prompt not in waiting
            }
            assert max(gaps.values()) <= limit + num_seqs


def test_a_launch_of_another_kind_passes_nobody_over() -> None:
    """Separate: a decode launch takes no prompt item along, however long that has waited."""
    driver = rig(SEPARATE, max_prefill_batches_before_decode=1)
    until_decoding(driver, "decoder")
    for name in ("a", "b", "c"):
        add(driver, name, 400, 1)
    batches = passes(driver, 6 * LIMIT)
    kinds = [{item.kind for item in batch.items} for batch in batches]
    assert all(len(kind) == 1 for kind in kinds)
    prompts = [batch for batch in batches if batch.num_decode == 0]
    starts = [batch.items[0].request.request_id for batch in prompts]
    assert starts.index("c") == LIMIT, "prompt launches are counted, not decode launches"


def test_a_mixing_policy_that_takes_no_prompts_is_made_to() -> None:
    def decode_only(view: View, stage: Stage) -> Selection:
        return Selection(view.decode_items or view.prompt_items[:1])

    driver = rig(replace(MIXED, name="decode-only", take=decode_only))
    until_decoding(driver, "decoder")
    prompt = add(driver, "prompt", 8)
    batches = passes(driver, 4 * LIMIT)
    assert longest_gap(batches, prompt) == LIMIT
    assert all(batch.num_decode == 1 for batch in batches)


@pytest.mark.parametrize("kind", ["fresh", "scored", "begun"])
def test_a_launch_of_several_passes_is_led_by_the_overdue_prompt(kind: str) -> None:
    """A policy that favours one prompt, and runs all its depths at once.

    A prompt that is scored after every loop, or has run a depth, can only run one pass.
    """
    is_scored = kind == "scored"
    favourites: list[Request] = []

    def take(view: View, stage: Stage) -> Selection:
        if stage is Stage.RECURRENT:
            return Selection(view.decode_items)
        items = tuple(item for item in view.prompt_items if item.request in favourites)
        if not items or items[0].depth > 0:
            return Selection(items or view.prompt_items[:1])
        return Selection(items, NUM_PLANES)

    # The door refuses scores of every loop where a policy declares that it runs all depths.
    declared = {"uses_prompt_shortcut": True} if is_scored else {"runs_all_depths": True}
    policy = Policy(name="hasty", choose=SEPARATE.choose, take=take, **declared)
    sizes = {"max_num_batched_tokens": 64, "prefill_chunk_size": 32, "max_model_len": 2048}
    driver = rig(policy, max_num_seqs=2, **sizes)
    limit = 4 * NUM_PLANES * 2
    old = Request(
        request_id="old",
        prompt_token_ids=(1,) * 5,
        max_tokens=1,
        exit_rule=FULL_DEPTH,
        payload=StubPayload(1),
        scoring=PromptScoring.EVERY_LOOP if is_scored else PromptScoring.NONE,
    )
    if kind == "begun":
        driver.scheduler.add(old)
        driver.step()
        assert old.prompt_items[0].depth == 1
    young = add(driver, "young", 1280, 1)
    favourites.append(young)
    if kind != "begun":
        driver.scheduler.add(old)
    *before, taken = passes(driver, limit + 1)
    assert all([item.request for item in batch.items] == [young] for batch in before)
    if kind == "fresh":
        assert (taken.launch, taken.num_passes) == (LaunchKind.PREFILL, NUM_PLANES)
    else:
        assert taken.launch is LaunchKind.RECURRENT
    assert [item.request for item in taken.items] == [old, young]
    driver.drain()
    check_drained(driver.scheduler, driver.executor)


def test_nobody_is_aged_where_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a policy that takes what it can, every ready item is in every launch that could."""
    found: list[Selection | None] = []
    original = aging.Aging.put_first

    def noted(self: aging.Aging, batch: Batch, view: View) -> Selection | None:
        found.append(original(self, batch, view))
        return found[-1]

    monkeypatch.setattr(aging.Aging, "put_first", noted)
    for policy in (MIXED, SEPARATE, POLICIES["deepest-first"]):
        driver = rig(policy, max_num_batched_tokens=64)
        until_decoding(driver, "a", "b")
        add(driver, "c", 100)
        passes(driver, 3 * LIMIT)
    assert 0 < len(found) < 20, "it looks once in so many launches"
    assert found == [None] * len(found)
