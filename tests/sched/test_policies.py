"""Shipped policies as pure functions of a view, and what a plug-in may and may not do."""

import math
from dataclasses import replace

import pytest
from scheduler_rig import EMPTY_VIEW, NUM_PLANES
from stub_executor import Driver, StubExecutor, StubPayload, check_drained

from looped.sched import (
    POLICIES,
    Choice,
    ConfigError,
    ExitOptions,
    InterfaceError,
    ItemKind,
    Policy,
    Request,
    ScheduledItem,
    Scheduler,
    SchedulerConfig,
    Selection,
    Stage,
    View,
    pack_whole,
    policy_named,
    resolve_exit,
)

RULE = resolve_exit(ExitOptions(), ExitOptions(), NUM_PLANES)
ATOMIC, SEPARATE = POLICIES["atomic"], POLICIES["separate"]


def item_of(kind: ItemKind, count: int = 1, depth: int = 0) -> ScheduledItem:
    request = Request(request_id="any", prompt_token_ids=(1,), max_tokens=1, exit_rule=RULE)
    return ScheduledItem(request, kind, depth, first_position=0, count=count)


DECODE = item_of(ItemKind.DECODE)
PROMPTS = tuple(item_of(ItemKind.PROMPT, count) for count in (4, 5, 3, 1))


@pytest.mark.parametrize("policy", [ATOMIC, SEPARATE])
def test_alternation_takes_due_decode_then_prompts_then_decode(policy: Policy) -> None:
    busy = replace(
        EMPTY_VIEW,
        decode_items=(DECODE,),
        prompt_items=PROMPTS,
    )
    assert policy.choose(busy) == (Stage.PREFILL, True), "decode is not due"
    assert policy.choose(replace(busy, num_prompt_launches=1)) == (Stage.RECURRENT, False)
    later = replace(busy, num_prompt_launches=1, prefill_interval=2)
    assert policy.choose(later) == (Stage.PREFILL, True)
    assert policy.choose(replace(busy, prompt_items=(), num_waiting=1)) == (Stage.PREFILL, True)
    assert policy.choose(replace(busy, prompt_items=())) == (Stage.RECURRENT, False)


def test_prompt_items_are_taken_whole_and_in_order_up_to_the_first_that_does_not_fit() -> None:
    assert pack_whole(PROMPTS, 13) == PROMPTS
    assert pack_whole(PROMPTS, 12) == PROMPTS[:3]
    assert pack_whole(PROMPTS, 11) == PROMPTS[:2], "the last would fit, but is not let past"
    assert pack_whole(PROMPTS, 3) == ()
    view = replace(EMPTY_VIEW, prompt_items=PROMPTS)
    assert SEPARATE.take(view, Stage.PREFILL) == Selection(PROMPTS[:2])
    assert ATOMIC.take(view, Stage.PREFILL) == Selection(PROMPTS[:2], num_passes=4)


def test_separate_packs_any_depths() -> None:
    depths = tuple(item_of(ItemKind.PROMPT, depth=depth) for depth in (1, 0, 1))
    view = replace(EMPTY_VIEW, prompt_items=depths)
    assert SEPARATE.take(view, Stage.PREFILL) == Selection(depths)


@pytest.mark.parametrize("policy", [ATOMIC, SEPARATE])
@pytest.mark.parametrize("stage", [Stage.PREFILL, Stage.RECURRENT])
def test_an_empty_stage_yields_an_empty_selection(policy: Policy, stage: Stage) -> None:
    assert policy.take(EMPTY_VIEW, stage).candidates == ()


def test_policies_are_found_by_name_and_say_which_executables_they_need() -> None:
    assert policy_named("atomic") is ATOMIC
    with pytest.raises(ConfigError, match=r"one of mixed, .*, got 'fastest'"):
        policy_named("fastest")
    sizes = {"num_planes": 4, "vocab_size": 9, "num_blocks": 9, "max_model_len": 9}
    config = SchedulerConfig(**sizes, prompt_shortcut=False)
    assert config.needs_prefill_launches(ATOMIC)
    assert not config.needs_prefill_launches(SEPARATE)
    assert not config.needs_prefill_launches(policy_named("mixed"))
    with_shortcut = SchedulerConfig(**sizes, prompt_shortcut=True)
    assert with_shortcut.needs_prefill_launches(policy_named("mixed"))


def run_with(policy: Policy, max_tokens: int = 3) -> tuple[Driver, list[Request]]:
    """Return a driver with one request in the loops and one long prompt, and the two."""
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=50,
        num_blocks=200,
        max_model_len=100,
        max_num_seqs=4,
        max_num_batched_tokens=8,
    )
    executor = StubExecutor(config)
    scheduler = Scheduler(config, executor, policy)
    prompts = (tuple(range(4)), tuple(range(30)))
    requests = [
        Request(
            request_id=str(len(prompt)),
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            exit_rule=RULE,
            payload=StubPayload(len(prompt)),
        )
        for prompt in prompts
    ]
    for request in requests:
        scheduler.add(request)
    return Driver(scheduler, executor), requests


def take_deepest(view: View, stage: Stage) -> Selection:
    """Run whatever is deepest first, one item a launch."""
    items = view.decode_items if stage is Stage.RECURRENT else view.prompt_items
    return Selection(tuple(sorted(items, key=lambda item: -item.known_depth)[:1]))


def test_a_policy_from_outside_runs_to_the_same_tokens() -> None:
    shipped, expected = run_with(SEPARATE)
    shipped.drain()
    deepest = Policy(
        name="deepest-first", choose=SEPARATE.choose, take=take_deepest, needs_depths=True
    )
    driver, requests = run_with(deepest)
    driver.drain()
    check_drained(driver.scheduler, driver.executor)
    assert [request.output_token_ids for request in requests] == [
        request.output_token_ids for request in expected
    ]


def test_a_policy_sees_the_callers_time() -> None:
    times = []

    def choose(view: View) -> Choice:
        times.append(view.now)
        return SEPARATE.choose(view)

    driver, _ = run_with(Policy(name="watching", choose=choose, take=SEPARATE.take))
    driver.step(now=2.5)
    assert times == [2.5]


def test_a_request_knows_when_it_came_and_when_its_newest_token_did() -> None:
    """At the first schedule() after the event: that is when a policy could act on it."""
    driver, (short, long) = run_with(SEPARATE)
    assert math.isnan(short.arrival_time)
    driver.step(now=2.0)
    assert (short.arrival_time, short.newest_token_time) == (2.0, 2.0)
    now = 2.0
    while not long.output_token_ids:
        now += 1.0
        driver.step(now=now)
    assert (long.arrival_time, long.newest_token_time) == (2.0, 2.0), "the token is not seen yet"
    driver.step(now=now + 0.5)
    assert (long.arrival_time, long.newest_token_time) == (2.0, now + 0.5)


def test_a_policys_item_size_is_asked_once_an_item_and_bent_into_its_bounds() -> None:
    asked: list[tuple[str, float, int]] = []
    sizes = {"4": iter((3,)), "30": iter((0, 99))}

    def item_size(view: View, request: Request) -> int:
        asked.append((request.request_id, view.now, len(view.prompt_items)))
        return next(sizes[request.request_id], 2)

    driver, (short, long) = run_with(replace(SEPARATE, name="sizing", item_size=item_size))
    driver.step(now=5.0)
    assert asked == [("4", 5.0, 0), ("30", 5.0, 1)], "each in sight of those made before it"
    assert [short.prompt_items[0].token_count, long.prompt_items[0].token_count] == [3, 1]
    chunks = [long.prompt_items[0]]
    while not long.is_prompt_complete:
        driver.step()
        chunks += [item for item in long.prompt_items if item not in chunks]
    assert [item.token_count for item in chunks] == [1, 5, *[2] * 12], "5 is the chunk"
    assert len(asked) == len(chunks) + 2, "the short prompt has two"
    driver.drain()


@pytest.mark.parametrize("size", [2.0, None, True, "2"])
def test_an_item_size_that_is_no_whole_number_is_the_policys_fault(size: object) -> None:
    wrong = replace(SEPARATE, name="wrong", item_size=lambda _view, _request: size)
    driver, _ = run_with(wrong)
    with pytest.raises(InterfaceError, match="from policy wrong: a whole number of tokens"):
        driver.step()


def test_a_policy_that_admits_nobody_is_asked_again_when_nobody_is_active() -> None:
    hermit = replace(SEPARATE, name="hermit", choose=lambda view: (SEPARATE.choose(view)[0], False))
    driver, requests = run_with(hermit)
    driver.drain()
    assert all(len(request.output_token_ids) == 3 for request in requests)


def test_a_policy_that_wants_nothing_is_at_fault_once_no_launch_is_out() -> None:
    idle = replace(SEPARATE, name="idle", take=lambda _view, _stage: Selection(()))
    driver, _ = run_with(idle)
    with pytest.raises(InterfaceError, match="from policy idle: a launch, since 2 requests are"):
        driver.step()


def test_no_step_is_lost_to_a_policy_that_insists_on_one_stage() -> None:
    stubborn = Policy(
        name="stubborn", choose=lambda _view: (Stage.RECURRENT, True), take=SEPARATE.take
    )
    driver, requests = run_with(stubborn)
    driver.drain()
    assert all(len(request.output_token_ids) == 3 for request in requests)


WRONG_CHOICES: dict[str, object] = {
    "nothing": None,
    "a stage alone": Stage.RECURRENT,
    "a stage's name": ("RECURRENT", True),
    "a stage without launches": (Stage.WAITING, True),
    "the end": (Stage.FINISHED, False),
    "no bool": (Stage.RECURRENT, None),
    "too much": (Stage.RECURRENT, True, 1),
}


@pytest.mark.parametrize("wrong", WRONG_CHOICES)
def test_a_wrong_choice_is_an_interface_error_that_names_the_policy(wrong: str) -> None:
    answer = WRONG_CHOICES[wrong]
    driver, _ = run_with(replace(SEPARATE, name="wrong", choose=lambda _view: answer))
    with pytest.raises(InterfaceError, match=r"expected from choose of policy wrong: .* got "):
        driver.step()
    assert driver.scheduler.num_in_flight == 0


WRONG_SELECTIONS = {
    "nothing": lambda _view: None,
    "items alone": lambda view: view.prompt_items[:1],
    "a list": lambda view: Selection(list(view.prompt_items[:1])),
    "an empty list": lambda _view: Selection([]),  # type: ignore[arg-type]
    "passes that are no number": lambda view: Selection(view.prompt_items[:1], None),
    "half a pass": lambda view: Selection(view.prompt_items[:1], 1.5),
    "whether to pass": lambda view: Selection(view.prompt_items[:1], True),
}


@pytest.mark.parametrize("wrong", WRONG_SELECTIONS)
def test_what_is_no_selection_is_an_interface_error_that_names_the_policy(wrong: str) -> None:
    take = WRONG_SELECTIONS[wrong]
    policy = Policy(
        name="wrong",
        choose=lambda _view: (Stage.PREFILL, True),
        take=lambda view, _stage: take(view),
    )
    driver, _ = run_with(policy)
    with pytest.raises(InterfaceError, match=r"expected from take of policy wrong: .* got "):
        driver.step()
    assert driver.scheduler.num_in_flight == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": None},
        {"choose": None},
        {"take": (Stage.RECURRENT, True)},
        {"item_size": 4},
        {"max_window": 2, "window": 2},
        {"max_window": 0},
        {"max_window": 2.0},
        {"max_window": 2},
        {"max_window": True},
        {"is_mixing": None},
        {"runs_all_depths": "yes"},
        {"needs_depths": 1},
    ],
)
def test_a_field_of_a_policy_that_is_not_of_its_kind_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"expected .*{list(wrong)[-1]}.* got"):
        replace(SEPARATE, **wrong)  # type: ignore[arg-type]


FAULTS = {
    "an item that was not offered": lambda view: Selection((DECODE,)),
    "an item twice": lambda view: Selection(view.prompt_items[:1] * 2),
    "too many rows": lambda view: Selection(view.prompt_items),
    "too many passes": lambda view: Selection(view.prompt_items[:1], num_passes=5),
    "too few passes": lambda view: Selection(view.prompt_items[:1], num_passes=2),
    "no pass": lambda view: Selection(view.prompt_items[:1], num_passes=0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_selection_is_an_interface_error_that_names_the_policy(fault: str) -> None:
    wrong = Policy(
        name="wrong",
        choose=lambda _view: (Stage.PREFILL, True),
        take=lambda view, _stage: FAULTS[fault](view),
    )
    driver, _ = run_with(wrong)
    with pytest.raises(InterfaceError, match="expected from policy wrong: "):
        driver.step()
    assert driver.scheduler.num_in_flight == 0


def test_a_launch_lists_decode_items_first_and_runs_several_passes_of_prompts_only() -> None:
    def take_prompts_first(view: View, _stage: Stage) -> Selection:
        return Selection(view.prompt_items[:1] + view.decode_items)

    def take_all_passes(view: View, _stage: Stage) -> Selection:
        items = view.decode_items + view.prompt_items[:1]
        return Selection(items, NUM_PLANES if view.decode_items else 1)

    for take, message in (
        (take_prompts_first, "decode items before prompt items"),
        (take_all_passes, "prompt items at depth 0"),
    ):
        driver, _ = run_with(
            Policy(name="wrong", choose=lambda _: (Stage.RECURRENT, True), take=take)
        )
        with pytest.raises(InterfaceError, match=message):
            driver.drain()
