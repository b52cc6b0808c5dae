"""Several items of one prompt at successive depths: exact, in order, and nothing is left behind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_rig import ADAPTIVE, NUM_PLANES, request_of
from stub_executor import (
    VOCAB_SIZE,
    Driver,
    StubExecutor,
    check_drained,
    check_invariants,
)

from looped.sched import (
    POLICIES,
    Batch,
    ConfigError,
    FinishReason,
    InterfaceError,
    ItemKind,
    LaunchKind,
    Policy,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    Selection,
    Stage,
    View,
    wavefront_from_options,
    wavefront_policy,
)
from looped.sched.choice import offer

MIXED = POLICIES["mixed"]


def rig(policy: Policy | int | None = None, **options: object) -> Driver:
    """Chunks of 4, and room for one of each depth beside a decode row. A number is a window."""
    if not isinstance(policy, Policy):
        policy = wavefront_policy(policy)
    sizes: dict[str, object] = {
        "num_blocks": 400,
        "max_model_len": 128,
        "block_size": 2,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 20,
        "prefill_chunk_size": 4,
    }
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=VOCAB_SIZE,
        **(sizes | options),  # type: ignore[arg-type]
    )
    executor = StubExecutor(config, config.max_window(policy))
    return Driver(Scheduler(config, executor, policy), executor)


def prompt_of(num_tokens: int) -> tuple[int, ...]:
    return tuple(index % VOCAB_SIZE for index in range(num_tokens))


def passes_of(driver: Driver, num_tokens: int) -> list[Batch]:
    """The launches that a prompt needs alone, up to its first token."""
    request = request_of(prompt=prompt_of(num_tokens), max_tokens=1)
    driver.scheduler.add(request)
    batches = []
    while not request.is_finished:
        batch = driver.step()
        assert batch is not None
        batches.append(batch)
    return batches


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 7])
def test_a_prompt_of_n_chunks_takes_n_and_p_less_1_launches(num_chunks: int) -> None:
    num_tokens = 4 * num_chunks - 1
    together = passes_of(rig(), num_tokens)
    assert len(together) == num_chunks + NUM_PLANES - 1
    apart = passes_of(rig(1), num_tokens)
    assert len(apart) == num_chunks * NUM_PLANES
    assert {batch.num_passes for batch in (*together, *apart)} == {1}


def test_a_window_bounds_the_items_under_way_and_p_is_as_good_as_more() -> None:
    counts = []
    for window in (1, 2, 3, 4, 5, None):
        driver = rig(window)
        batches = passes_of(driver, 40)
        most = max(len(batch.items) for batch in batches)
        assert most == min(window or NUM_PLANES, NUM_PLANES)
        counts.append(len(batches))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 10 * NUM_PLANES
    assert counts[3] == counts[4] == counts[5] == 10 + NUM_PLANES - 1


def test_launches_list_decode_rows_then_requests_by_admission_then_chunks_by_place() -> None:
    driver = rig()
    decoder = request_of("decoder", (1,), max_tokens=60)
    driver.scheduler.add(decoder)
    while not decoder.output_token_ids:
        driver.step()
    older, newer = (request_of(name, prompt_of(14), 1) for name in ("older", "newer"))
    for request in (older, newer):
        driver.scheduler.add(request)
    seen = []
    while newer.stage in (Stage.WAITING, Stage.PREFILL):
        batch = driver.step()
        assert batch is not None
        assert batch.items[0].request is decoder
        prompts = [(item.request.request_id, item.first_position) for item in batch.items[1:]]
        assert prompts == sorted(prompts, key=lambda prompt: (prompt[0] != "older", prompt[1]))
        seen.append(prompts)
    # 19 rows beside the decoder: when each has two chunks under way, all of them fit.
    assert [("older", 0), ("older", 4), ("newer", 0), ("newer", 4)] in seen
    assert max(len(prompts) for prompts in seen) == 5, "the last chunk of a prompt is shorter"


def test_decoders_are_never_delayed_by_a_window() -> None:
    """Everyone who decodes is in every pass, however many chunks there are to run."""
    driver = rig()
    decoders = [request_of(f"decoder {index}", (index,), max_tokens=20) for index in range(3)]
    for request in decoders:
        driver.scheduler.add(request)
    while not all(request.output_token_ids for request in decoders):
        driver.step()
    driver.scheduler.add(request_of("prompt", prompt_of(40), 1))
    while any(request.stage is not Stage.FINISHED for request in decoders):
        ready = {request for request in decoders if request.stage is Stage.RECURRENT}
        batch = driver.step()
        assert batch is not None
        if batch.launch is LaunchKind.RECURRENT:
            assert ready == {item.request for item in batch.items[: batch.num_decode]}
    driver.drain()
    check_drained(driver.scheduler, driver.executor)


def test_mutation_a_chunk_that_joins_the_one_before_at_its_depth_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if it were enough that the chunk before has run as deep, in the same launch."""

    def add_all(self: offer.Offer, request: Request) -> None:
        for item in request.prompt_items[1:]:
            self.prompt_items.append(offer.prompt_item(request, item, NUM_PLANES))
        if len(request.prompt_items) < 2 and request.num_chunked_tokens < request.num_prompt_tokens:
            self.lacking_items.append(request)

    monkeypatch.setattr(offer.Offer, "_add_later_items", add_all)
    with pytest.raises(AssertionError):
        passes_of(rig(take_last_first(2)), 16)


def take_last_first(window: int) -> Policy:
    """One prompt item a launch, the last that is offered."""

    def take(view: View, stage: Stage) -> Selection:
        return Selection(view.decode_items or view.prompt_items[-1:])

    return replace(wavefront_policy(window), name="last-first", take=take)


def take_any(window: int, seed: int) -> Policy:
    """Whatever part of the offer chance wants, and windows that come and go."""
    chance = random.Random(seed)

    def take(view: View, stage: Stage) -> Selection:
        room = view.max_num_batched_tokens - len(view.decode_items)
        prompts = []
        for item in view.prompt_items:
            if chance.random() < 0.6 and item.count <= room:
                prompts.append(item)
                room -= item.count
        items = view.decode_items + tuple(prompts)
        return Selection(items or view.prompt_items[:1])

    return replace(
        wavefront_policy(window),
        name="any",
        take=take,
        item_size=lambda view, _: chance.randint(1, view.prefill_chunk_size),
        window=lambda _view, _request: chance.randint(1, window),
    )


@st.composite
def crowds(draw: st.DrawFn) -> list[Request]:
    """Requests of every length, some adaptive, some scored."""
    requests = []
    for index in range(draw(st.integers(1, 5))):
        scoring = draw(st.sampled_from([PromptScoring.NONE] * 4 + [*PromptScoring]))
        requests.append(
            request_of(
                str(index),
                prompt_of(draw(st.integers(1, 30))),
                max_tokens=draw(st.integers(1, 4)),
                exit_rule=ADAPTIVE,
                scoring=scoring,
            )
        )
    return requests


def fresh(requests: list[Request]) -> list[Request]:
    """The same requests, not added anywhere."""
    return [
        request_of(
            request.request_id,
            request.prompt_token_ids,
            max_tokens=request.max_tokens,
            exit_rule=request.exit_rule,
            scoring=request.scoring,
        )
        for request in requests
    ]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    crowds(),
    st.sampled_from([1, 2, 3, 4, None]),
    st.integers(1, 7),
    st.integers(0, 3),
    st.booleans(),
    st.none() | st.integers(0, 99),
)
def test_tokens_and_exit_depths_are_those_of_mixed(
    requests: list[Request],
    window: int | None,
    chunk: int,
    num_ahead: int,
    incremental_kv: bool,
    seed: int | None,
) -> None:
    policy = wavefront_policy(window) if seed is None else take_any(window or NUM_PLANES, seed)
    outputs = []
    for each, added in ((MIXED, requests), (policy, fresh(requests))):
        config = rig(
            each,
            prefill_chunk_size=chunk,
            prefix_caching=False,
            incremental_kv=incremental_kv,
        )
        driver = Driver(config.scheduler, config.executor, num_ahead)
        for request in added:
            driver.scheduler.add(request)
        while driver.scheduler.has_unfinished_requests:
            driver.step()
            check_invariants(driver.scheduler)
        check_drained(driver.scheduler, driver.executor)
        outputs.append(
            [
                (request.output_token_ids, request.exit_depths, request.prompt_scores)
                for request in added
            ]
        )
    assert outputs[0] == outputs[1]


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    crowds(),
    st.sampled_from([2, 3, None]),
    st.booleans(),
    st.lists(st.sampled_from(["step"] * 6 + ["abort", "fail", "reset", "ahead"]), max_size=40),
)
def test_whatever_ends_a_request_at_whatever_time_gives_everything_back(
    requests: list[Request], window: int | None, incremental_kv: bool, events: list[str]
) -> None:
    driver = rig(window, prefill_chunk_size=3, incremental_kv=incremental_kv)
    scheduler, executor = driver.scheduler, driver.executor
    ended: list[Request] = []
    for request in requests:
        scheduler.add(request)
    for number, event in enumerate(events):
        match event:
            case "step":
                driver.step()
            case "ahead":  # one launch stays out for a while
                if (batch := scheduler.schedule()) is not None:
                    driver.pending.append((batch, executor.execute(batch)))
            case "abort":
                request = scheduler.abort(str(number % len(requests)))
                ended += [] if request is None else [request]
            case "fail":
                # Not executed: what it was about to write is not there.
                if not driver.pending and (batch := scheduler.schedule()) is not None:
                    ended += scheduler.fail_batch(batch, "failed")
            case "reset":
                driver.pending.clear()
                ended += scheduler.reset("reset")
        check_invariants(scheduler)
        held = sum(len(request.prompt_items) for request in scheduler.active_requests)
        assert held == len(executor.outstanding)
    driver.drain()
    check_drained(scheduler, executor)
    ended += driver.finished
    assert len(set(ended)) == len(ended) == len(requests), "everyone ends once"
    assert all(not request.prompt_items for request in requests)


def launch_of_several(driver: Driver, request: Request) -> Batch:
    """Step until a launch carries several chunks of a prompt; returns it, not executed."""
    driver.scheduler.add(request)
    while True:
        batch = driver.scheduler.schedule()
        assert batch is not None
        if len(batch.items) > 2:
            assert {item.request for item in batch.items} == {request}
            return batch
        driver.scheduler.apply(batch, driver.executor.execute(batch))


def test_a_request_in_a_launch_several_times_is_aborted_once() -> None:
    driver, request = rig(), request_of(prompt=prompt_of(30))
    batch = launch_of_several(driver, request)
    result = driver.executor.execute(batch)
    assert driver.scheduler.abort("a") is request
    assert driver.scheduler.apply(batch, result).finished == []
    assert request.finish_reason is FinishReason.ABORT
    check_drained(driver.scheduler, driver.executor)


def test_a_request_in_a_launch_several_times_fails_once() -> None:
    driver, request = rig(), request_of(prompt=prompt_of(30))
    batch = launch_of_several(driver, request)
    assert driver.scheduler.fail_batch(batch, "no upload") == [request]
    assert (request.finish_reason, request.error) == (FinishReason.ERROR, "no upload")
    check_drained(driver.scheduler, driver.executor)


def test_a_scored_prompt_has_one_item_at_a_time() -> None:
    driver = rig()
    request = request_of(prompt=prompt_of(30), scoring=PromptScoring.LAST_LOOP)
    driver.scheduler.add(request)
    while request.stage in (Stage.WAITING, Stage.PREFILL):
        driver.step()
        assert len(request.prompt_items) <= 1
    driver.drain()
    assert len(request.prompt_scores[0].logprobs) == 29


def test_blocks_are_claimed_item_by_item_when_kv_grows() -> None:
    driver = rig(incremental_kv=True)
    request = request_of(prompt=prompt_of(30))
    driver.scheduler.add(request)
    while request.stage in (Stage.WAITING, Stage.PREFILL):
        driver.step()
        started = [item.token_end for item in request.prompt_items if item.depth > 0]
        num_tokens = max(started, default=request.num_prefilled_tokens)
        assert len(request.block_tables[0]) == -(-num_tokens // 2)


def test_several_passes_of_a_chunk_behind_another_are_refused() -> None:
    def take(view: View, stage: Stage) -> Selection:
        behind = [item for item in view.prompt_items if item.first_position > 0]
        return Selection(view.prompt_items[:1]) if not behind else Selection((behind[0],), 2)

    driver = rig(replace(wavefront_policy(2), name="hasty", take=take))
    driver.scheduler.add(request_of(prompt=prompt_of(12)))
    with pytest.raises(InterfaceError, match=r"hasty: .* behind another item of its prompt"):
        driver.drain()


@pytest.mark.parametrize(("answer", "most"), [(0, 1), (-3, 1), (2, 2), (99, 3)])
def test_a_window_is_bent_into_what_there_is_room_for(answer: int, most: int) -> None:
    policy = replace(wavefront_policy(3), window=lambda _view, _request: answer)
    assert max(len(batch.items) for batch in passes_of(rig(policy), 40)) == most


def test_a_window_that_is_no_whole_number_is_refused() -> None:
    policy = replace(wavefront_policy(3), window=lambda _view, _request: 2.0)  # type: ignore[arg-type, return-value]
    driver = rig(policy)
    driver.scheduler.add(request_of())
    with pytest.raises(InterfaceError, match=r"whole number of prompt items .* got 2\.0"):
        driver.step()


def test_prefix_caching_is_off_with_a_window_and_refused_where_it_is_asked_for() -> None:
    driver = rig()
    for name in ("first", "second"):
        request = request_of(name, prompt_of(20))
        driver.scheduler.add(request)
        driver.drain()
        assert (request.num_cached_tokens, driver.scheduler.num_cached_blocks) == (0, 0)
    with pytest.raises(ConfigError, match=r"off, or left out, with policy wavefront.* up to 4 "):
        rig(prefix_caching=True)
    alone = rig(1, prefix_caching=True)
    for name in ("first", "second"):
        request = request_of(name, prompt_of(20))
        alone.scheduler.add(request)
        alone.drain()
    assert request.num_cached_tokens == 18


def test_windows_are_checked_when_the_policy_is_made() -> None:
    assert wavefront_from_options().max_window >= NUM_PLANES
    assert wavefront_from_options(window="3") == wavefront_policy(3) != wavefront_policy(2)
    for wrong in ("0", "-1", "two", "1.5", ""):
        with pytest.raises(ConfigError, match="window must be"):
            wavefront_from_options(window=wrong)


def test_no_launch_has_several_passes() -> None:
    """The prompt-only shortcut is not its own: chunks run side by side instead."""
    driver = rig(max_num_batched_tokens=64, prefill_chunk_size=32)
    batches = passes_of(driver, 100)
    assert {batch.launch for batch in batches} == {LaunchKind.RECURRENT}
    assert {item.kind for batch in batches for item in batch.items} == {ItemKind.PROMPT}
