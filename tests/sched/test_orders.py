"""Policies that order: what they put first, where that decides, and that it changes no token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from known_policies import known_policies
from scheduler_rig import ADAPTIVE, EMPTY_VIEW, FULL_DEPTH, NUM_PLANES
from stub_executor import VOCAB_SIZE, Driver, StubExecutor, StubPayload, check_drained

from looped.sched import (
    POLICIES,
    Batch,
    ConfigError,
    ExitMode,
    ExitOptions,
    ExitRule,
    InterfaceError,
    ItemKind,
    LaunchKind,
    Policy,
    Request,
    ScheduledItem,
    Scheduler,
    SchedulerConfig,
    Selection,
    Stage,
    View,
    resolve_exit,
)

MIXED = POLICIES["mixed"]
ORDERS = (
    "deepest-first",
    "shallowest-first",
    "shortest-oracle",
    "shortest-lookahead",
    "shortest-blind",
)
LOOKAHEAD = resolve_exit(
    ExitOptions(mode=ExitMode.RANDOM_LOOKAHEAD, threshold=0.5, min_loops=1),
    ExitOptions(),
    NUM_PLANES,
)


def rule_of(**options: object) -> ExitRule:
    return resolve_exit(ExitOptions(**options), ExitOptions(), NUM_PLANES)  # type: ignore[arg-type]


def decode(depth: int, rule: ExitRule = FULL_DEPTH, *, is_pending: bool = False) -> ScheduledItem:
    request = Request(request_id="any", prompt_token_ids=(1,), max_tokens=9, exit_rule=rule)
    return ScheduledItem(
        request,
        ItemKind.DECODE,
        depth,
        first_position=1,
        count=1,
        output_index=1,
        is_exit_pending=is_pending,
    )


def prompt(depth: int, count: int = 4, request: Request | None = None) -> ScheduledItem:
    request = request or Request(
        request_id="any", prompt_token_ids=(1,) * 40, max_tokens=9, exit_rule=FULL_DEPTH
    )
    return ScheduledItem(request, ItemKind.PROMPT, depth, first_position=0, count=count)


def taken(name: str, decodes: list[ScheduledItem], prompts: list[ScheduledItem]) -> Selection:
    view = replace(
        EMPTY_VIEW,
        max_num_batched_tokens=12,
        decode_items=tuple(decodes),
        prompt_items=tuple(prompts),
        num_past_prompt=len(decodes),
    )
    return POLICIES[name].take(view, Stage.RECURRENT)


def order_of(name: str, items: list[ScheduledItem]) -> list[int]:
    """Places in admission order, in the order of the launch."""
    is_decode = items[0].kind is ItemKind.DECODE
    candidates = taken(name, items if is_decode else [], [] if is_decode else items).candidates
    return [items.index(item) for item in candidates]


def test_deepest_and_shallowest_order_by_depth_and_equals_by_admission() -> None:
    decodes = [decode(depth) for depth in (1, 3, 0, 3)]
    assert order_of("deepest-first", decodes) == [1, 3, 0, 2]
    assert order_of("shallowest-first", decodes) == [2, 0, 1, 3]
    prompts = [prompt(depth) for depth in (2, 0, 3)]
    assert order_of("deepest-first", prompts) == [2, 0, 1]
    assert order_of("shallowest-first", prompts) == [1, 0, 2]


def test_decode_rows_come_before_prompts_which_fill_what_is_left_up_to_the_first_too_many() -> None:
    decodes = [decode(0), decode(2)]
    prompts = [prompt(0, count=1), prompt(1, count=7), prompt(3, count=4)]
    selection = taken("deepest-first", decodes, prompts)
    assert selection == Selection((decodes[1], decodes[0], prompts[2])), "7 rows do not fit 6"


def test_the_three_forecasts_differ_by_what_they_may_know() -> None:
    """At depth 1: leaves after 4 loops, after 2, after 3; an exit that is pending; max_loops 3."""
    decodes = [
        decode(1, rule_of(trace=(4, 4))),
        decode(1, rule_of(trace=(4, 2))),
        decode(1, rule_of(trace=(4, 3))),
        decode(1, LOOKAHEAD, is_pending=True),
        decode(1, rule_of(max_loops=3)),
    ]
    found = {name: order_of(name, decodes[:4]) for name in ORDERS[2:]}
    assert found == {
        "shortest-oracle": [1, 3, 2, 0],
        "shortest-lookahead": [1, 3, 0, 2],
        "shortest-blind": [0, 1, 2, 3],
    }
    assert order_of("shortest-blind", [decodes[0], decodes[4]]) == [1, 0], "max_loops is known"


def test_a_look_ahead_knows_nothing_before_the_first_loop() -> None:
    decodes = [decode(0, rule_of(trace=(4, 4))), decode(0, rule_of(trace=(4, 1)))]
    assert order_of("shortest-oracle", decodes) == [1, 0]
    assert order_of("shortest-lookahead", decodes) == [0, 1]


def test_a_token_past_the_end_of_its_trace_runs_every_loop() -> None:
    decodes = [decode(0, rule_of(trace=(4,))), decode(0, rule_of(trace=(4, 3)))]
    assert order_of("shortest-oracle", decodes) == [1, 0]


@pytest.mark.parametrize("name", ORDERS)
def test_items_of_one_prompt_keep_their_order(name: str) -> None:
    one, other = (prompt(0).request for _ in range(2))
    first, second = prompt(2, request=one), prompt(1, request=one)
    items = [first, second, prompt(0, request=other)]
    candidates = taken(name, [], items).candidates
    assert candidates.index(first) == candidates.index(second) - 1


def drive(
    policy: str | Policy, max_decode_rows: int | None, num_requests: int = 6, num_ahead: int = 0
) -> Iterator[tuple[Driver, list[Request], Batch]]:
    """Requests with traces and live exits, arriving one by one; every launch as it comes."""
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=VOCAB_SIZE,
        num_blocks=2000,
        max_model_len=128,
        max_num_seqs=num_requests,
        max_num_batched_tokens=8 + num_requests,
        prefill_chunk_size=8,
        max_decode_rows=max_decode_rows,
        policy=policy,
    )
    executor = StubExecutor(config, config.max_window(config.chosen_policy))
    driver = Driver(Scheduler(config, executor), executor, num_ahead)
    requests = []
    rules = [ADAPTIVE, LOOKAHEAD, rule_of(trace=(4, 1, 3, 2, 4, 1, 2)), FULL_DEPTH]
    for index in range(num_requests):
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(range(1 + 7 * (num_requests - index))),
                max_tokens=12,
                exit_rule=rules[index % len(rules)],
                payload=StubPayload(index),
            )
        )
        driver.scheduler.add(requests[-1])
        for _ in range(3):
            batch = driver.step(now=float(executor.num_launches))
            if batch is not None:
                yield driver, requests, batch
    while driver.scheduler.has_unfinished_requests:
        batch = driver.step(now=float(executor.num_launches))
        if batch is not None:
            yield driver, requests, batch
    check_drained(driver.scheduler, executor)


@pytest.mark.parametrize("name", [*ORDERS, "mixed"])
def test_by_default_every_ready_decode_row_is_in_every_launch_that_takes_some(name: str) -> None:
    """So orders cannot differ on decode rows."""
    ready: list[ScheduledItem] = []

    def noted(view: View, stage: Stage) -> Selection:
        ready[:] = view.decode_items
        return POLICIES[name].take(view, stage)

    crowds = []
    for _, _, batch in drive(replace(POLICIES[name], take=noted), None):
        if batch.launch is LaunchKind.RECURRENT and batch.num_decode:
            assert set(map(id, batch.items[: batch.num_decode])) == set(map(id, ready))
            crowds.append(batch.num_decode)
    assert max(crowds) > 3


def test_below_the_default_orders_decide_who_goes() -> None:
    """Several tokens are half-way, of which one may go on."""
    sequences = set()
    for name in ("deepest-first", "shallowest-first", "shortest-oracle", "mixed"):
        launches = drive(name, 1)
        decoding = (batch.items[0].request for _, _, batch in launches if batch.num_decode)
        sequences.add(tuple(request.request_id for request in decoding))
    assert len(sequences) == 4


@pytest.mark.parametrize("max_decode_rows", [None, 1, 3])
@pytest.mark.parametrize("name", known_policies())
def test_every_policy_keeps_the_limit_and_brings_the_same_tokens(
    name: str, max_decode_rows: int | None
) -> None:
    outputs = {}
    for policy in (known_policies()[name], MIXED):
        launches = list(drive(policy, max_decode_rows))
        for _, _, batch in launches:
            if batch.launch is LaunchKind.RECURRENT:
                assert batch.num_decode <= (max_decode_rows or 6)
        _, requests, _ = launches[-1]
        outputs[policy.name] = [(r.output_token_ids, r.exit_depths) for r in requests]
    assert outputs[name] == outputs["mixed"]
    assert all(len(tokens) == 12 for tokens, _ in outputs[name])


def test_a_selection_of_more_decode_rows_is_the_policys_fault() -> None:
    def take_all(view: View, stage: Stage) -> Selection:
        passes = view.decode_items + view.prompt_items[:1]
        return Selection(passes)

    greedy = replace(MIXED, name="greedy", take=take_all)
    with pytest.raises(InterfaceError, match="greedy: at most 1 decode rows; got 2"):
        for _ in drive(greedy, 1, num_requests=2):
            pass


@pytest.mark.parametrize("limit", [0, 17])
def test_a_limit_outside_of_the_slots_is_refused(limit: int) -> None:
    sizes = {"num_planes": 4, "vocab_size": 9, "num_blocks": 99, "max_model_len": 9}
    with pytest.raises(ConfigError, match=rf"{limit} is not in 1\.\.16; leave it out for all"):
        SchedulerConfig(**sizes, max_decode_rows=limit)
    assert SchedulerConfig(**sizes).decode_row_limit == 16


def test_no_refill_admits_when_all_have_finished() -> None:
    admitted: list[tuple[int, int]] = []
    for driver, requests, _ in drive("no-refill", None):
        active = driver.scheduler.active_requests
        admitted.append((len(active), sum(r.stage is Stage.FINISHED for r in requests)))
    joined = [after for before, after in pairwise(admitted) if after[0] > before[0] > 0]
    assert joined == [], "nobody joins those that run"
    assert max(active for active, _ in admitted) == 5, "all that waited enter together"
