"""Policy `mixed`: prompts beside decoders, and neither in the other's way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_rig import EMPTY_VIEW, FULL_DEPTH, NUM_PLANES
from stub_executor import VOCAB_SIZE, Driver, StubExecutor, StubPayload, check_drained

from looped.sched import (
    POLICIES,
    Batch,
    ExitMode,
    ExitOptions,
    HeadResult,
    InterfaceError,
    ItemKind,
    LaunchKind,
    LaunchResult,
    Policy,
    Request,
    ScheduledItem,
    Scheduler,
    SchedulerConfig,
    Selection,
    Stage,
    View,
    pack_whole,
    resolve_exit,
)

MIXED = POLICIES["mixed"]


def rig(policy: str | Policy = "mixed", **options: object) -> Driver:
    """Four planes, room for everything, chunks of 8."""
    name = policy if isinstance(policy, str) else "mixed"
    sizes = {
        "num_blocks": 4000,
        "max_model_len": 512,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "prefill_chunk_size": 8,
    }
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=VOCAB_SIZE,
        policy=name,
        **(sizes | options),  # type: ignore[arg-type]
    )
    executor = StubExecutor(config)
    given = None if isinstance(policy, str) else policy
    return Driver(Scheduler(config, executor, given), executor)


def request_of(request_id: str, num_prompt: int, max_tokens: int = 4, **options: object) -> Request:
    fields = {"exit_rule": FULL_DEPTH, "payload": StubPayload(len(request_id))} | options
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(
            (index + ord(request_id[0])) % VOCAB_SIZE for index in range(num_prompt)
        ),
        max_tokens=max_tokens,
        **fields,  # type: ignore[arg-type]
    )


def decoding(driver: Driver, request_id: str = "decoder", max_tokens: int = 200) -> Request:
    """A request that has emitted its first token."""
    request = request_of(request_id, 1, max_tokens)
    driver.scheduler.add(request)
    while not request.output_token_ids:
        driver.step()
    return request


def item_of(kind: ItemKind, count: int = 1, depth: int = 0) -> ScheduledItem:
    return ScheduledItem(request_of("any", 1), kind, depth, first_position=0, count=count)


DECODE = tuple(item_of(ItemKind.DECODE) for _ in range(3))


def test_decode_items_are_all_taken_first_and_prompts_fill_what_is_left() -> None:
    prompts = tuple(item_of(ItemKind.PROMPT, count) for count in (4, 3, 1))
    view = replace(EMPTY_VIEW, decode_items=DECODE, prompt_items=prompts)
    assert MIXED.choose(view) == (Stage.RECURRENT, True)
    assert MIXED.take(view, Stage.RECURRENT) == Selection(DECODE + prompts[:2])


@pytest.mark.parametrize(("count", "is_taken"), [(7, True), (8, False)])
def test_a_prompt_item_is_taken_whole_or_not_at_all_at_the_budgets_edge(
    count: int, is_taken: bool
) -> None:
    prompts = (item_of(ItemKind.PROMPT, count), item_of(ItemKind.PROMPT, 1))
    view = replace(EMPTY_VIEW, decode_items=DECODE, prompt_items=prompts)
    taken = MIXED.take(view, Stage.RECURRENT).candidates
    assert taken == (DECODE + prompts[:1] if is_taken else DECODE), "nobody is let past"


def test_the_shortcut_runs_every_depth_only_while_nobody_is_past_the_prompt() -> None:
    alike = (item_of(ItemKind.PROMPT, 9), item_of(ItemKind.PROMPT, 8))
    view = replace(EMPTY_VIEW, max_num_batched_tokens=32, prompt_items=alike, prompt_shortcut=True)
    assert MIXED.take(view, Stage.RECURRENT) == Selection(alike, num_passes=4)
    unlike = (alike[0], item_of(ItemKind.PROMPT, 8, depth=2))
    begun = (item_of(ItemKind.PROMPT, 9, depth=1), item_of(ItemKind.PROMPT, 8, depth=1))
    few = (alike[0], item_of(ItemKind.PROMPT, 7))
    for other in (
        replace(view, prompt_shortcut=False),
        replace(view, num_past_prompt=1),
        replace(view, prompt_items=unlike),
        replace(view, prompt_items=begun),
        replace(view, prompt_items=few),
        replace(view, decode_items=DECODE, num_past_prompt=3),
    ):
        assert MIXED.take(other, Stage.RECURRENT).num_passes == 1


def test_many_slots_leave_chunks_whole() -> None:
    """800 tokens are 7 chunks of 128, each one launch of all depths."""
    driver = rig(
        prompt_shortcut=True, max_num_seqs=256, max_num_batched_tokens=None,
        prefill_chunk_size=None, max_model_len=1024, num_blocks=2048,
    )  # fmt: skip
    driver.scheduler.add(request_of("long", 800, max_tokens=1))
    launches = []
    while (batch := driver.step()) is not None:
        launches.append(batch)
    assert [batch.launch for batch in launches] == [LaunchKind.PREFILL] * 7
    assert [len(batch.head_items) for batch in launches] == [0] * 6 + [1]
    assert len(driver.finished) == 1


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_first_token_that_is_out_switches_the_shortcut_off(is_applied: bool) -> None:
    """Its row is in the loops, and must not wait for four passes; one that is over is not."""
    driver = rig(prompt_shortcut=True, max_num_batched_tokens=64, prefill_chunk_size=32)
    scheduler, executor = driver.scheduler, driver.executor
    scheduler.add(request_of("short", 3, max_tokens=1 if is_applied else 3))
    out = [batch for _ in range(1) if (batch := scheduler.schedule()) is not None]
    while not out[-1].head_items:
        following = scheduler.schedule()
        assert following is not None
        out.append(following)
    results = [executor.execute(batch) for batch in out]
    if is_applied:
        for batch, result in zip(out, results, strict=True):
            scheduler.apply(batch, result)
        out, results = [], []
    scheduler.add(request_of("long", 100))
    prompts = scheduler.schedule()
    assert prompts is not None
    assert prompts.num_passes == (NUM_PLANES if is_applied else 1)
    assert prompts.num_decode == (0 if is_applied else 1)
    driver.pending.extend(zip(out, results, strict=True))
    driver.pending.append((prompts, executor.execute(prompts)))
    driver.drain()
    check_drained(scheduler, executor)


@pytest.mark.parametrize("num_prompt", [8, 100])
def test_requests_are_admitted_while_prompts_run(num_prompt: int) -> None:
    driver = rig()
    decoding(driver)
    long = request_of("long", num_prompt)
    driver.scheduler.add(long)
    driver.step()
    late = request_of("x", 1)
    driver.scheduler.add(late)
    batch = driver.step()
    assert batch is not None
    assert late.stage is not Stage.WAITING
    assert [item.request for item in batch.items][1:] == [long, late]


def test_prompts_keep_their_admission_order_at_every_depth() -> None:
    driver = rig(max_num_batched_tokens=11)
    decoding(driver)
    prompts = [request_of(name, 24) for name in ("first", "second", "third")]
    for prompt in prompts:
        driver.scheduler.add(prompt)
    finished_prompts: list[Request] = []
    while len(finished_prompts) < 3:
        batch = driver.step()
        assert batch is not None
        check_admission_order(batch, driver.scheduler)
        finished_prompts += [
            prompt
            for prompt in prompts
            if prompt.is_prompt_complete and prompt not in finished_prompts
        ]
    assert finished_prompts == prompts


def check_admission_order(batch: Batch, scheduler: Scheduler) -> None:
    """Prompt items stand in admission order, and the oldest unfinished prompt leads them."""
    order = [item.request.admission_index for item in batch.items[batch.num_decode :]]
    unfinished = [
        request.admission_index
        for request in scheduler.active_requests
        if request.stage is Stage.PREFILL
    ]
    assert order == sorted(order), "the oldest prompt leads"
    if order and unfinished:
        assert order[0] <= min(unfinished), "the oldest prompt leads"


def launches_between_tokens(driver: Driver, decoder: Request) -> list[list[Batch]]:
    """Per gap between two tokens of `decoder`: the launches after one and up to the next."""
    gaps: list[list[Batch]] = [[]]
    while decoder.stage is not Stage.FINISHED:
        num_tokens = len(decoder.output_token_ids)
        batch = driver.step()
        assert batch is not None
        gaps[-1].append(batch)
        if len(decoder.output_token_ids) > num_tokens:
            gaps.append([])
    return gaps[1:-1]


def prompt_passes(batch: Batch) -> int:
    """Passes over the layers that a launch spends with prompt rows in it."""
    return batch.num_passes if batch.num_decode < len(batch.items) else 0


def gaps_under(policy: str) -> list[list[Batch]]:
    driver = rig(policy, max_num_batched_tokens=24, max_num_seqs=6)
    decoder = decoding(driver, max_tokens=12)
    for name in ("a", "b"):
        driver.scheduler.add(request_of(name, 200, max_tokens=1))
    # Out of step with the decoder, so that their first tokens fall into its gaps.
    driver.step()
    driver.step()
    for name in ("c", "d", "e"):
        driver.scheduler.add(request_of(name, 3, max_tokens=1))
    return launches_between_tokens(driver, decoder)


def test_between_two_tokens_mixed_runs_p_launches_and_atomic_p_times_p_prompt_passes() -> None:
    """Counted in passes over the layers with prompt rows in them, per gap of one decoder."""
    mixed, atomic = gaps_under("mixed"), gaps_under("atomic")
    for gap in mixed:
        assert len(gap) == NUM_PLANES
        assert all(batch.num_decode >= 1 for batch in gap), "inside the decoder's launches"
    others = [len(batch.head_items) > 0 for gap in mixed for batch in gap[:-1]]
    assert any(others), "short prompts end inside the gaps"
    assert any(len(batch.items) > 2 for gap in mixed for batch in gap), "both prompts ride along"
    assert max(sum(map(prompt_passes, gap)) for gap in mixed) == NUM_PLANES
    assert max(sum(map(prompt_passes, gap)) for gap in atomic) == NUM_PLANES * NUM_PLANES


def test_one_decoders_token_does_not_wait_for_a_long_prompt() -> None:
    driver = rig(max_num_seqs=8, max_num_batched_tokens=16, prefill_chunk_size=8)
    decoder = decoding(driver, max_tokens=10)
    driver.scheduler.add(request_of("long", 200, max_tokens=1))
    for gap in launches_between_tokens(driver, decoder):
        assert [batch.launch for batch in gap] == [LaunchKind.RECURRENT] * NUM_PLANES
        assert [item.request for item in gap[-1].head_items] == [decoder]


def test_kv_grows_when_depth_0_is_scheduled_and_never_again() -> None:
    driver = rig(incremental_kv=True, block_size=2)
    decoding(driver)
    prompt = request_of("prompt", 20)
    driver.scheduler.add(prompt)
    sizes = []
    while not prompt.is_prompt_complete:
        batch = driver.step()
        assert batch is not None
        depths = [item.depth for item in batch.items if item.request is prompt]
        sizes += [(depth, len(prompt.block_tables[0])) for depth in depths]
    assert sizes == [(depth, size) for size in (4, 8, 10) for depth in range(NUM_PLANES)]


@pytest.mark.parametrize("end", ["abort", "fail", "reset"])
def test_prompt_state_is_released_however_a_prompt_beside_decoders_ends(end: str) -> None:
    driver = rig()
    decoder = decoding(driver)
    prompt = request_of("prompt", 40)
    driver.scheduler.add(prompt)
    driver.step()
    assert len(driver.executor.outstanding) == 1
    if end == "abort":
        driver.scheduler.abort("prompt")
    else:
        batch = driver.scheduler.schedule()
        assert batch is not None
        assert {item.request for item in batch.items} == {decoder, prompt}
        ended = (
            driver.scheduler.fail_batch(batch, "broken")
            if end == "fail"
            else driver.scheduler.reset("lost")
        )
        assert set(ended) == {decoder, prompt}
    assert not driver.executor.outstanding
    again = request_of("prompt", 3)
    driver.scheduler.add(again)
    driver.drain()
    assert len(again.output_token_ids) == 4
    check_drained(driver.scheduler, driver.executor)


def test_decode_rows_may_finish_in_a_launch_they_share_with_a_prompt() -> None:
    driver = rig()
    decoder = decoding(driver, max_tokens=2)
    prompt = request_of("prompt", 40)
    driver.scheduler.add(prompt)
    while decoder.stage is not Stage.FINISHED:
        driver.step()
    assert prompt.stage is Stage.PREFILL
    driver.drain()
    assert len(prompt.output_token_ids) == 4


def test_trace_fixed_and_adaptive_rows_are_routed_by_their_own_rules_beside_a_prompt() -> None:
    driver = rig(max_num_seqs=6, max_num_batched_tokens=24)
    rules = {
        "lookahead": resolve_exit(
            ExitOptions(mode=ExitMode.RANDOM_LOOKAHEAD, threshold=0.0, min_loops=3),
            ExitOptions(),
            NUM_PLANES,
        ),
        "trace": resolve_exit(ExitOptions(trace=(4, 1, 3, 2)), ExitOptions(), NUM_PLANES),
        "fixed": resolve_exit(ExitOptions(max_loops=2), ExitOptions(), NUM_PLANES),
        "ouro": resolve_exit(
            ExitOptions(mode=ExitMode.OURO, threshold=0.0, min_loops=3), ExitOptions(), NUM_PLANES
        ),
        "delayed": resolve_exit(
            ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.0, min_loops=1),
            ExitOptions(),
            NUM_PLANES,
        ),
    }
    requests = {
        name: request_of(name, 1, max_tokens=4, exit_rule=rule) for name, rule in rules.items()
    }
    for request in requests.values():
        driver.scheduler.add(request)
    while not all(request.output_token_ids for request in requests.values()):
        driver.step()
    driver.scheduler.add(request_of("prompt", 60, max_tokens=1))
    crowds = []
    while driver.scheduler.has_unfinished_requests:
        batch = driver.step()
        assert batch is not None
        crowds.append({item.request.request_id for item in batch.items})
    assert {*rules, "prompt"} in crowds, "all rules beside a prompt, in one launch"
    assert requests["trace"].exit_depths == [4, 1, 3, 2]
    assert requests["fixed"].exit_depths == [4, 2, 2, 2]
    assert requests["ouro"].exit_depths == [4, 3, 3, 3]
    assert requests["delayed"].exit_depths == [4, 2, 2, 2]
    assert requests["lookahead"].exit_depths == [4, 3, 3, 3]


def test_a_missing_row_in_a_mixed_launch_is_an_interface_error() -> None:
    driver = rig()
    adaptive = resolve_exit(
        ExitOptions(mode=ExitMode.OURO, threshold=0.9, min_loops=1), ExitOptions(), NUM_PLANES
    )
    request = request_of("adaptive", 1, max_tokens=9, exit_rule=adaptive)
    driver.scheduler.add(request)
    while not request.output_token_ids:
        driver.step()
    driver.scheduler.add(request_of("prompt", 30))
    batch = driver.scheduler.schedule()
    assert batch is not None
    assert 0 < batch.num_decode < len(batch.items)
    for head in (None, HeadResult([], [], [], [], [])):
        with pytest.raises(InterfaceError, match="head result"):
            driver.scheduler.apply(batch, LaunchResult(head))
    driver.scheduler.apply(batch, driver.executor.execute(batch))
    driver.drain()


def prompts_first(view: View, stage: Stage) -> Selection:
    taken = MIXED.take(view, stage).candidates
    prompts = tuple(item for item in taken if item.kind is ItemKind.PROMPT)
    return Selection(prompts + tuple(item for item in taken if item.kind is ItemKind.DECODE))


def taking_turns(view: View, stage: Stage) -> Selection:
    """The mutation of an item that goes to the back of the queue after each depth."""
    rotated = sorted(view.prompt_items, key=lambda item: item.depth)
    return MIXED.take(replace(view, prompt_items=tuple(rotated)), stage)


def test_mutation_prompts_before_decodes_is_refused() -> None:
    driver = rig(replace(MIXED, name="mutant", take=prompts_first))
    decoding(driver)
    driver.scheduler.add(request_of("prompt", 20))
    with pytest.raises(InterfaceError, match="decode items before prompt items"):
        driver.drain()


def budget_for_prompts_first(view: View, stage: Stage) -> Selection:
    """The mutation that a launch's layout does not betray: decode rows get what prompts leave."""
    prompts = pack_whole(view.prompt_items, view.max_num_batched_tokens)
    num_rows = view.max_num_batched_tokens - sum(item.count for item in prompts)
    return Selection(view.decode_items[:num_rows] + prompts)


def test_mutation_a_budget_that_prompts_take_first_starves_a_decoder() -> None:
    mutant = replace(MIXED, name="mutant", take=budget_for_prompts_first)
    for policy, is_starved in ((MIXED, False), (mutant, True)):
        driver = rig(policy, max_num_batched_tokens=16)
        decoder = decoding(driver)
        for name in ("first", "second"):
            driver.scheduler.add(request_of(name, 64))
        batches = [driver.step() for _ in range(3)]
        taken = [decoder in [item.request for item in batch.items] for batch in batches if batch]
        assert all(taken) is not is_starved


def test_mutation_an_item_that_changes_its_place_is_noticed() -> None:
    driver = rig(replace(MIXED, name="mutant", take=taking_turns), max_num_batched_tokens=11)
    decoding(driver)
    for name in ("first", "second", "third"):
        driver.scheduler.add(request_of(name, 24))

    with pytest.raises(AssertionError, match="the oldest prompt leads"):
        drain_in_admission_order(driver)


def drain_in_admission_order(driver: Driver) -> None:
    while driver.scheduler.has_unfinished_requests:
        batch = driver.step()
        if batch is not None:
            check_admission_order(batch, driver.scheduler)
