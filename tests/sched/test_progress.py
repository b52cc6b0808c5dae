"""What results do: routing by each request's rule, prompt progress, KV growth, readbacks."""

import pytest
from scheduler_rig import ADAPTIVE, FULL_DEPTH, NUM_PLANES, request_of, rig
from stub_executor import (
    Driver,
)

from looped.sched import (
    Batch,
    CodaResult,
    ExitMode,
    ExitOptions,
    FinishReason,
    InterfaceError,
    ItemKind,
    LaunchKind,
    RecurrentResult,
    Scheduler,
    Stage,
    resolve_exit,
)


def in_the_loops(driver: Driver, scheduler: Scheduler) -> Batch:
    """Step until a decode row is scheduled; returns its batch, not executed."""
    while True:
        batch = scheduler.schedule()
        assert batch is not None
        if batch.launch is not LaunchKind.CODA and batch.num_decode:
            return batch
        scheduler.apply(batch, driver.executor.execute(batch))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (RecurrentResult(None), "expected decode signals, .* got none"),
        (RecurrentResult([0.5, 0.5]), "expected 1 decode signals, .* got 2"),
        (CodaResult([1], [0.0], [True]), "unexpected CodaResult for a RECURRENT launch"),
    ],
)
def test_a_result_that_does_not_fit_changes_nothing(
    result: RecurrentResult | CodaResult, message: str
) -> None:
    scheduler, driver = rig()
    request = request_of(exit_rule=ADAPTIVE)
    scheduler.add(request)
    batch = in_the_loops(driver, scheduler)
    assert batch.is_read
    with pytest.raises(InterfaceError, match=message):
        scheduler.apply(batch, result)
    assert request.is_in_flight
    assert request.loops_done == 0
    scheduler.apply(batch, driver.executor.execute(batch))
    driver.drain()
    assert request.finish_reason is FinishReason.LENGTH


def test_a_coda_result_must_have_one_entry_per_item() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of())
    for _ in range(4):
        driver.step()
    batch = scheduler.schedule()
    assert batch is not None
    with pytest.raises(InterfaceError, match="expected 1 entries in a coda result"):
        scheduler.apply(batch, CodaResult([1], [], [True]))
    with pytest.raises(InterfaceError, match="unexpected RecurrentResult for a CODA launch"):
        scheduler.apply(batch, RecurrentResult(None))


def test_each_request_is_routed_by_its_own_rule_within_one_launch() -> None:
    scheduler, driver = rig()
    trace = resolve_exit(ExitOptions(trace=(4, 1)), ExitOptions(), NUM_PLANES)
    shallow = resolve_exit(ExitOptions(max_loops=2), ExitOptions(), NUM_PLANES)
    delayed = resolve_exit(
        ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.5, min_loops=1),
        ExitOptions(),
        NUM_PLANES,
    )
    rules = (trace, shallow, FULL_DEPTH, ADAPTIVE, delayed)
    requests = [
        request_of(str(index), exit_rule=rule, max_tokens=2) for index, rule in enumerate(rules)
    ]
    for request in requests:
        scheduler.add(request)
    batch = in_the_loops(driver, scheduler)
    assert batch.num_decode == 5
    assert [item.is_deciding for item in batch.items] == [False, False, False, True, True]
    assert [item.runs_gate for item in batch.items] == [False, False, False, True, True]
    always = [1.0] * 5
    scheduler.apply(batch, RecurrentResult(always))
    assert [request.stage for request in requests] == [
        Stage.CODA,
        Stage.RECURRENT,
        Stage.RECURRENT,
        Stage.CODA,
        Stage.RECURRENT,
    ]
    assert requests[4].is_exit_pending


@pytest.mark.parametrize("policy", ["atomic", "separate"])
def test_a_prompt_item_runs_every_depth_and_the_next_one_follows(policy: str) -> None:
    scheduler, driver = rig(policy=policy)
    request = request_of(prompt=tuple(range(10)), max_tokens=1)
    scheduler.add(request)
    launches = []
    while request.stage is not Stage.CODA:
        batch = driver.step()
        assert batch is not None
        launches.append((batch.launch, batch.num_passes, batch.num_rows))
    sizes = (4, 4, 2)
    if policy == "atomic":
        assert launches == [(LaunchKind.PREFILL, 4, rows) for rows in sizes]
    else:
        assert launches == [(LaunchKind.RECURRENT, 1, rows) for rows in sizes for _ in range(4)]


def test_incremental_kv_grows_at_depth_0_only() -> None:
    scheduler, driver = rig(incremental_kv=True, policy="separate")
    request = request_of(prompt=tuple(range(9)), max_tokens=4)
    scheduler.add(request)
    lengths = []
    while scheduler.has_unfinished_requests:
        batch = scheduler.schedule()
        assert batch is not None
        lengths.append((batch.items[0].depth, len(request.block_tables[0])))
        scheduler.apply(batch, driver.executor.execute(batch))
    grown_at = {
        depth
        for (depth, after), (_, before) in zip(lengths[1:], lengths, strict=False)
        if after > before
    }
    assert grown_at == {0}
    assert [length for _, length in lengths[::4]][:3] == [2, 4, 5]


def test_coda_waits_for_its_batch_but_not_for_prompts() -> None:
    scheduler, driver = rig(min_coda_batch_size=8, policy="separate")
    scheduler.add(request_of("a", max_tokens=3))
    scheduler.add(request_of("b", prompt=tuple(range(20)), max_tokens=3))
    kinds = []
    while not driver.finished:
        batch = driver.step()
        assert batch is not None
        kinds.append(batch.launch)
    assert driver.finished[0].request_id == "a"
    assert kinds.count(LaunchKind.CODA) == 3, "alone in the loops, a never waits for company"


def test_a_launch_is_read_only_where_an_outcome_is_open() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of(max_tokens=3))
    driver.drain()
    assert driver.executor.num_reads == 3, "fixed depth: codas only"
    adaptive = request_of(max_tokens=3, exit_rule=ADAPTIVE)
    scheduler.add(adaptive)
    driver.drain()
    num_deciding = sum(min(depth, 3) for depth in adaptive.exit_depths[1:])
    assert driver.executor.num_reads == 3 + 3 + num_deciding


def test_the_items_of_a_batch_say_what_its_rows_are() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of(prompt=(1, 2, 3), exit_rule=ADAPTIVE))
    prompt = scheduler.schedule()
    assert prompt is not None
    assert (prompt.num_rows, prompt.num_decode) == (3, 0)
    assert not prompt.runs_gate
    assert not prompt.is_read
    assert prompt.items[0].kind is ItemKind.PROMPT
    scheduler.apply(prompt, driver.executor.execute(prompt))
    decode = in_the_loops(driver, scheduler)
    assert (decode.num_rows, decode.num_decode) == (1, 1)
    assert decode.runs_gate
    assert decode.is_read
