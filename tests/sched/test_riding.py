"""Decode rows ride: they are in every launch until the host has read that they ended."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduler_rig import ADAPTIVE, FULL_DEPTH, NUM_PLANES, request_of, rig
from stub_executor import (
    KNOWN_STOPS,
    Driver,
    StubPayload,
    check_drained,
    token_of,
)

from looped.sched import (
    POLICIES,
    Batch,
    ConfigError,
    ExitMode,
    ExitOptions,
    FinishReason,
    ItemKind,
    Request,
    ScheduledItem,
    resolve_exit,
)
from looped.sched.choice import offer

AHEAD = (0, 1, 2, 4)
RULES = {
    "fixed": FULL_DEPTH,
    "shallow": resolve_exit(ExitOptions(max_loops=2), ExitOptions(), NUM_PLANES),
    "trace": resolve_exit(ExitOptions(trace=(4, 1, 3, 2, 4)), ExitOptions(), NUM_PLANES),
    **{
        mode.value: resolve_exit(
            ExitOptions(mode=mode, threshold=0.5, min_loops=1), ExitOptions(), NUM_PLANES
        )
        for mode in ExitMode
        if mode is not ExitMode.TRACE
    },
}
CERTAIN = ("fixed", "shallow", "trace")


def house(num_ahead: int, policy: str = "mixed", **sizes: object) -> Driver:
    """A scheduler with room for everything, and who drives it."""
    scheduler, driver = rig(
        policy=policy, num_blocks=4000, max_num_seqs=16, max_num_batched_tokens=64, **sizes
    )
    return Driver(scheduler, driver.executor, num_ahead)


def launches_of(driver: Driver) -> list[Batch]:
    """Run to the end; the launches in order."""
    launches = []
    while driver.scheduler.has_unfinished_requests:
        batch = driver.step()
        if batch is not None:
            launches.append(batch)
    check_drained(driver.scheduler, driver.executor)
    return launches


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("name", RULES)
def test_a_row_is_in_every_launch_while_it_lives(name: str, num_ahead: int) -> None:
    driver = house(num_ahead)
    requests = [
        request_of(str(i), max_tokens=7, exit_rule=RULES[name], payload=StubPayload(i))
        for i in range(5)
    ]
    for request in requests:
        driver.scheduler.add(request)
    launches = launches_of(driver)
    rides = Counter(
        item.request for batch in launches for item in batch.items if item.kind is ItemKind.DECODE
    )
    for request in requests:
        num_masked = rides[request] - sum(request.exit_depths[1:])
        assert 0 <= num_masked <= (0 if name in CERTAIN else num_ahead)
        mine = [i for i, b in enumerate(launches) if request in [item.request for item in b.items]]
        assert mine == list(range(mine[0], mine[-1] + 1)), "without a gap"
    assert driver.executor.rows_masked.total() == rides.total() - sum(
        sum(request.exit_depths[1:]) for request in requests
    )


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_a_full_house_at_fixed_depth_takes_p_launches_a_round_of_tokens(num_ahead: int) -> None:
    """The prompts run in one launch, with the first tokens; no launch brings tokens alone."""
    driver = house(num_ahead)
    for index in range(16):
        driver.scheduler.add(request_of(str(index), max_tokens=9))
    launches = launches_of(driver)
    assert [len(batch.head_items) for batch in launches] == [16] + ([0] * 3 + [16]) * 8


@pytest.mark.parametrize("num_ahead", [1, 2, 4])
def test_what_is_open_is_said_to_be_so_and_the_furthest_position_is_claimed(
    num_ahead: int,
) -> None:
    """The stub checks what is certain against the device; here: that it is not said too rarely."""
    driver = house(num_ahead)
    driver.scheduler.add(request_of("live", max_tokens=40, exit_rule=ADAPTIVE))
    driver.scheduler.add(request_of("fixed", max_tokens=40, payload=StubPayload(3)))
    depths: dict[str, set[int | None]] = {"live": set(), "fixed": set()}
    for batch in launches_of(driver):
        for item in batch.items:
            if item.kind is ItemKind.DECODE:
                depths[item.request.request_id].add(item.depth)
                is_token_open = item.output_index is None
                assert not is_token_open or item.depth is None or num_ahead > 1
    assert depths["fixed"] == {0, 1, 2, 3}
    assert None in depths["live"]


def test_a_scheduler_whose_records_are_all_read_is_certain_of_everything() -> None:
    driver = house(0)
    for index, rule in enumerate(RULES.values()):
        request = request_of(str(index), max_tokens=9, exit_rule=rule, payload=StubPayload(index))
        driver.scheduler.add(request)
    for batch in launches_of(driver):
        assert all(item.depth is not None for item in batch.items)
        assert all(item.output_index is not None for item in batch.items)


@pytest.mark.parametrize("name", RULES)
def test_heads_follow_where_a_row_may_leave_and_nowhere_else(name: str) -> None:
    driver, rule = house(0), RULES[name]
    driver.scheduler.add(request_of(max_tokens=9, exit_rule=rule))
    for batch in launches_of(driver):
        (item,) = batch.items
        if item.kind is ItemKind.PROMPT:
            assert bool(batch.head_items) == (item.depth == NUM_PLANES - 1)
            continue
        loop, index = item.known_depth + 1, item.output_index
        assert index is not None
        if name == "trace":
            expected = loop == (rule.trace[index] if index < 5 else NUM_PLANES)
        elif name in CERTAIN:
            expected = loop == rule.max_loops
        elif name == "ouro":
            expected = True
        else:  # after the second loop; if that was not settled, a loop later
            expected = loop >= 2 and (loop != 3 or item.is_exit_pending is not False)
        assert bool(batch.head_items) == expected, (loop, item)


def test_a_policy_that_needs_depths_is_told_of_an_exit_a_loop_ahead() -> None:
    rule = RULES["ouro_delayed"]
    driver = house(0, policy="deepest-first")
    driver.scheduler.add(request_of(max_tokens=12, exit_rule=rule))
    pending = set()
    for batch in launches_of(driver):
        (item,) = batch.items
        pending.add(item.is_exit_pending)
        if item.kind is ItemKind.DECODE and item.depth == 0:
            assert batch.head_items, "the first loop decides for the second"
    assert pending == {False, True}


ENDS = {
    "length": {},
    "a stop id that the device knows": {"stop": frozenset({token_of(0, 2, NUM_PLANES)})},
    "logits that are not finite": {"payload": StubPayload(0, non_finite_at=3)},
}


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("end", ENDS)
def test_a_row_that_ended_on_the_device_is_masked_until_the_host_has_read_it(
    end: str, num_ahead: int
) -> None:
    """At fixed depth the host foresees an end by length, and no other."""
    driver = house(num_ahead)
    request = request_of(max_tokens=5, **ENDS[end])  # type: ignore[arg-type]
    driver.scheduler.add(request)
    launches = launches_of(driver)
    num_tokens = {"length": 5}.get(end, 3)
    assert len(request.output_token_ids) == num_tokens
    last = num_tokens + (end == "logits that are not finite")
    num_masked = 0 if end == "length" else num_ahead
    assert driver.executor.rows_masked[request] == num_masked
    assert len(launches) == last * NUM_PLANES + num_masked
    assert driver.executor.rows_run[request] == 3 * NUM_PLANES + (last - 1) * NUM_PLANES


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("name", ["ouro", "ouro_delayed", "lookahead", "random_lookahead"])
def test_a_row_with_live_exits_is_masked_for_no_longer_than_the_host_runs_ahead(
    name: str, num_ahead: int
) -> None:
    num_masked = Counter[int]()
    for seed in range(40):
        driver = house(num_ahead)
        request = request_of(max_tokens=4, exit_rule=RULES[name], payload=StubPayload(seed))
        driver.scheduler.add(request)
        launches_of(driver)
        num_passes = NUM_PLANES * request.num_prompt_tokens + sum(request.exit_depths[1:])
        assert driver.executor.rows_run[request] == num_passes
        num_masked[driver.executor.rows_masked[request]] += 1
    # Its last token may have left after one loop, or two; the host knows that it does after four.
    most = NUM_PLANES - (1 if name == "ouro" else 2)
    assert min(num_ahead, 1) <= max(num_masked) <= min(num_ahead, most)


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_a_stop_id_that_only_the_host_knows_ends_a_request_as_late_as_it_reads(
    num_ahead: int,
) -> None:
    stop = token_of(0, 2, NUM_PLANES)
    others = [i for i in range(50) if i not in [token_of(0, n, 4) for n in range(20)]]
    hidden = frozenset({*[i for i in others if i < stop][:KNOWN_STOPS], stop})
    assert sorted(hidden)[KNOWN_STOPS:] == [stop]
    driver = house(num_ahead)
    request = request_of(max_tokens=20, stop=hidden)
    driver.scheduler.add(request)
    launches_of(driver)
    assert request.finish_reason is FinishReason.STOP
    assert len(request.output_token_ids) == 3
    ridden = driver.executor.rows_run[request] - len(request.prompt_token_ids) * NUM_PLANES
    assert ridden == sum(request.exit_depths[1:]) + num_ahead, "these records are dropped"
    assert not driver.executor.rows_masked


def claims_of(driver: Driver, num_ahead: int) -> list[tuple[int, int]]:
    """Positions that a lone decode row may reach, and blocks of one token that it holds then."""
    found = []
    while driver.scheduler.has_unfinished_requests:
        batch = driver.scheduler.schedule()
        if batch is not None:
            driver.pending.append((batch, driver.executor.execute(batch)))
            (item,) = batch.items
            if item.kind is ItemKind.DECODE:
                (num_blocks,) = {len(table) for table in item.request.block_tables}
                found.append((item.first_position + 1, num_blocks))
        if batch is None or len(driver.pending) > num_ahead:
            driver.apply_oldest()
    check_drained(driver.scheduler, driver.executor)
    return found


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("name", RULES)
def test_kv_that_grows_is_claimed_for_the_furthest_position(name: str, num_ahead: int) -> None:
    """The stub refuses what is written outside the tables; no more is claimed than can be used."""
    driver = house(num_ahead, incremental_kv=True, block_size=1)
    request = request_of(max_tokens=12, exit_rule=RULES[name])
    driver.scheduler.add(request)
    claims = claims_of(driver, num_ahead)
    furthest = 0
    for num_positions, num_blocks in claims:
        furthest = max(furthest, num_positions)
        assert num_blocks == furthest <= request.capacity
    assert furthest == request.capacity
    if name in CERTAIN:
        assert [claim for claim, _ in claims] == sorted(claim for claim, _ in claims)


def test_mutation_kv_that_is_claimed_for_the_nearest_position_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    furthest = offer.decode_item

    def nearest(request: Request, num_planes: int, *, watches_pending: bool) -> ScheduledItem:
        item = furthest(request, num_planes, watches_pending=watches_pending)
        item.first_position = request.num_prompt_tokens + request.outlook_index - 1
        return item

    monkeypatch.setattr(offer, "decode_item", nearest)
    driver = house(2, incremental_kv=True, block_size=1)
    driver.scheduler.add(request_of(max_tokens=40, exit_rule=ADAPTIVE))
    with pytest.raises((IndexError, AssertionError)):
        driver.drain()


def test_run_ahead_is_refused_where_it_cannot_be() -> None:
    for options, message in (
        ({"run_ahead": 5}, r"run_ahead must be in 0\.\.4, got 5"),
        ({"run_ahead": -1}, r"run_ahead must be in 0\.\.4, got -1"),
        ({"run_ahead": 1, "policy": "shortest-oracle"}, "run_ahead must be 0, or left out, with"),
    ):
        with pytest.raises(ConfigError, match=message):
            rig(**options)
    for options, expected in (
        ({}, 1),
        ({"run_ahead": 0}, 0),
        ({"run_ahead": 4}, 4),
        ({"policy": "deepest-first"}, 0),
        ({"policy": "deepest-first", "run_ahead": 0}, 0),
    ):
        scheduler, _ = rig(**options)
        assert scheduler.config.launches_ahead(scheduler.policy) == expected
    needing = {name for name, policy in POLICIES.items() if policy.needs_depths}
    assert needing == {
        "deepest-first", "shallowest-first", "shortest-oracle", "shortest-lookahead",
        "shortest-blind",
    }  # fmt: skip
