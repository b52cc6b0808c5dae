"""The simulator: made-up results, the clock, and the speed that sweeps need."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_rig import NUM_PLANES, request_of
from stub_executor import VOCAB_SIZE, StubExecutor, StubPayload, check_drained

from looped.sched import (
    POLICIES,
    Arrival,
    Arrivals,
    Batch,
    ClosedArrivals,
    CostModel,
    ExitMode,
    ExitOptions,
    ExitRule,
    FinishReason,
    InterfaceError,
    LaunchKind,
    LaunchResult,
    Policy,
    PromptScoring,
    Request,
    RequestError,
    SchedulerConfig,
    Selection,
    SimulatedLaunch,
    SimulatedOutput,
    Simulation,
    SimulationListener,
    Stage,
    TimedArrivals,
    resolve_exit,
)

COSTS = CostModel(
    name="made-up",
    source="a test",
    num_planes=NUM_PLANES,
    weight_floor=4.0,
    row_seconds=0.5,
    decode_key_seconds=0.0,
    prompt_key_seconds=0.0,
    head_floor=1.0,
    head_row_seconds=0.0,
    host_launch_seconds=0.25,
)
SIZES = {"num_blocks": 128, "max_model_len": 64, "block_size": 2, "prefill_chunk_size": 4}


def config_of(**options: object) -> SchedulerConfig:
    values = {"num_planes": NUM_PLANES, "vocab_size": VOCAB_SIZE, "max_num_seqs": 4}
    values |= {"max_num_batched_tokens": 8}
    return SchedulerConfig(**(values | SIZES | options))  # type: ignore[arg-type]


def traced(request_id: str, depths: tuple[int, ...], num_prompt: int = 3) -> Request:
    rule = resolve_exit(ExitOptions(trace=depths), ExitOptions(), NUM_PLANES)
    prompt = tuple((7 * i + len(request_id)) % VOCAB_SIZE for i in range(num_prompt))
    return Request(
        request_id=request_id, prompt_token_ids=prompt, max_tokens=len(depths), exit_rule=rule
    )


def replaced(request: Request, rule: ExitRule) -> Request:
    """The request, whose tokens run the loops of its trace by another rule."""
    request.payload = SimulatedOutput(request.exit_rule.trace)
    request.exit_rule = rule
    return request


def all_at_once(*requests: Request) -> TimedArrivals:
    return TimedArrivals(Arrival(0.0, request) for request in requests)


def facts(launches: list[SimulatedLaunch]) -> list[object]:
    """What a launch did, without times or objects."""
    return [
        (
            launch.batch.launch,
            launch.batch.num_passes,
            [
                (
                    item.request.request_id,
                    item.kind,
                    item.depth,
                    item.first_position,
                    item.count,
                    slot,
                )
                for item, slot in zip(launch.batch.items, launch.slots, strict=True)
            ],
        )
        for launch in launches
    ]


def test_tokens_leave_after_the_loops_of_their_trace_and_requests_end() -> None:
    request = traced("a", (4, 1, 3, 2))
    launches = list(Simulation(config_of(), all_at_once(request), COSTS).run())
    assert request.exit_depths == [4, 1, 3, 2]
    assert request.finish_reason is FinishReason.LENGTH
    # Depths are known ahead, so a head follows where a token leaves, and nowhere else.
    assert {launch.batch.launch for launch in launches} == {LaunchKind.RECURRENT}
    assert len(launches) == NUM_PLANES + 1 + 3 + 2
    heads = [launch.index for launch in launches if launch.head is not None]
    assert heads == [3, 4, 7, 9]
    assert [len(launch.update.tokens) for launch in launches if launch.head is not None] == [1] * 4


def test_the_clock_moves_by_the_host_and_by_the_bucket_of_each_launch() -> None:
    requests = [traced("a", (4, 2), num_prompt=10), traced("b", (4, 3))]
    config = config_of(policy="separate")
    simulation = Simulation(config, all_at_once(*requests), COSTS, waits_for_device=True)
    launches = list(simulation.run())
    assert launches[0].scheduled == 0.0
    assert all(first.ended == then.scheduled for first, then in pairwise(launches))
    for launch in launches:
        assert launch.called == launch.started == launch.scheduled + 0.25
        bucket = launch.work.bucket
        assert bucket >= launch.batch.num_rows
        head = 0.0 if launch.head is None else 1.0
        assert launch.ended == launch.started + max(4.0, bucket * 0.5) + head
    assert {launch.work.bucket for launch in launches} >= {2, 4}
    # It was waited for at once, and applied when the next one was out.
    assert all(first.visible == then.ended for first, then in pairwise(launches))


def test_without_a_launch_ahead_host_and_device_take_turns() -> None:
    config = config_of(policy="separate", run_ahead=0)
    launches = list(Simulation(config, all_at_once(traced("a", (4, 2))), COSTS).run())
    assert [launch.head is not None for launch in launches] == [False] * 3 + [True, False, True]
    for first, then in pairwise(launches):
        assert first.visible == first.ended == then.scheduled
    for launch in launches:
        assert launch.awaited == launch.returned == launch.called == launch.started
    assert launches[-1].visible == 6 * (0.25 + 4.0) + 2 * 1.0


def test_with_one_launch_ahead_the_device_never_waits_for_a_quicker_host() -> None:
    config = config_of(policy="separate", run_ahead=1)
    launches = list(Simulation(config, all_at_once(traced("a", (4, 2))), COSTS).run())
    # By hand: the first two go out at once, each later one when the last but one is done.
    assert [launch.scheduled for launch in launches] == [0.0, 0.25, 4.25, 8.25, 12.25, 17.25]
    assert [launch.called for launch in launches] == [0.25, 0.5, 4.5, 8.5, 12.5, 17.5]
    assert [launch.started for launch in launches] == [0.25, 4.25, 8.25, 12.25, 17.25, 21.25]
    assert [launch.ended for launch in launches] == [4.25, 8.25, 12.25, 17.25, 21.25, 26.25]
    assert [launch.awaited for launch in launches] == [0.5, 4.5, 8.5, 12.5, 17.5, 21.25]
    assert [launch.visible for launch in launches] == [launch.ended for launch in launches]


def test_with_one_launch_ahead_the_host_never_waits_for_a_quicker_device() -> None:
    config = config_of(policy="separate", run_ahead=1)
    costs = replace(COSTS, host_launch_seconds=8.0)
    launches = list(Simulation(config, all_at_once(traced("a", (4, 2))), costs).run())
    # The device is done with each when the host has made the next.
    assert [launch.called for launch in launches] == [8.0, 16.0, 24.0, 32.0, 40.0, 48.0]
    assert [launch.started for launch in launches] == [launch.called for launch in launches]
    assert [launch.awaited for launch in launches] == [16.0, 24.0, 32.0, 40.0, 48.0, 48.0]
    assert [launch.visible for launch in launches] == [16.0, 24.0, 32.0, 40.0, 48.0, 53.0]


@pytest.mark.parametrize("run_ahead", [0, 1, 2, 4])
def test_so_many_launches_are_out_before_the_oldest_is_waited_for(run_ahead: int) -> None:
    config = config_of(run_ahead=run_ahead)
    rule = ExitRule(mode=ExitMode.OURO, threshold=0.5, min_loops=1, max_loops=NUM_PLANES)
    requests = [replaced(traced(str(i), (4, 1, 3, 2, 2, 1, 4)), rule) for i in range(12)]
    simulation = Simulation(config, ClosedArrivals(iter(requests), 4), COSTS)
    waits = Waits(simulation)
    launches = list(simulation.run())
    assert [request.exit_depths for request in requests] == [[4, 1, 3, 2, 2, 1, 4]] * 12
    # No launch is waited for with fewer behind it, unless nothing could be launched.
    assert len(waits.num_behind) == len(launches)
    for num_behind, was_stuck in waits.num_behind:
        assert num_behind == run_ahead or (num_behind < run_ahead and was_stuck)
    assert sum(was_stuck for _, was_stuck in waits.num_behind) <= max(run_ahead, 1) + 12 // 4
    if run_ahead:
        idle = [then.started - first.ended for first, then in pairwise(launches)]
        assert sum(map(bool, idle)) <= 12 // 4


class Waits(SimulationListener):
    """How many launches were out behind each that was applied, and whether no other could be."""

    def __init__(self, simulation: Simulation) -> None:
        self.num_behind: list[tuple[int, bool]] = []
        self._num_out = 0
        self._is_stuck = False
        self._schedule = simulation.scheduler.schedule
        simulation.listener = self
        simulation.scheduler.schedule = self._noted  # type: ignore[method-assign]

    def _noted(self, now: float = 0.0) -> Batch | None:
        batch = self._schedule(now)
        self._is_stuck = batch is None
        return batch

    def dispatched(self, launch: SimulatedLaunch) -> None:
        self._num_out += 1

    def applying(self, launch: SimulatedLaunch, result: LaunchResult) -> None:
        self._num_out -= 1
        self.num_behind.append((self._num_out, self._is_stuck))


def test_the_device_begins_with_a_call_and_the_host_goes_on_when_it_returns() -> None:
    costs = replace(COSTS, host_call_seconds=2.0)
    config = config_of(policy="separate", run_ahead=0)
    launches = list(Simulation(config, all_at_once(traced("a", (4, 2))), costs).run())
    for launch in launches:
        assert launch.started >= launch.called == launch.scheduled + 0.25
        # A head has a call of its own, in which the host is while the device is at the pass.
        calls = 1 if launch.head is None else 2
        assert launch.returned == launch.called + calls * 2.0
        assert launch.ended == launch.called + 4.0 + (calls - 1) * 1.0
        assert launch.visible == max(launch.ended, launch.returned)
    assert launches[0].started == launches[0].called
    # The pass is done before its call has returned, and the head begins with the second call.
    quick = replace(costs, weight_floor=0.5, row_seconds=0.0)
    launches = list(Simulation(config, all_at_once(traced("b", (4, 2))), quick).run())
    for launch in launches:
        assert launch.ended == launch.called + (0.5 if launch.head is None else 2.0 + 1.0)
        assert launch.visible == launch.returned > launch.ended


def test_heads_are_priced_by_their_rows_and_by_what_may_leave_early() -> None:
    costs = replace(
        COSTS,
        head_row_seconds=0.75,
        overheads={LaunchKind.HEAD: {2: 0.5, 4: 2.5}},
        head_factors={"copies": 2.0},
    )
    requests = [traced(name, (4, 4, 2)) for name in "abc"]
    config = config_of(max_num_batched_tokens=16)
    launches = list(Simulation(config, all_at_once(*requests), costs).run())
    heads = [launch for launch in launches if launch.head is not None]
    works = [launch.head for launch in heads if launch.head is not None]
    assert [(one.bucket, one.num_rows, one.num_passes, one.form) for one in works] == [
        (4, 3, 0, "greedy"),
        (4, 3, 0, "greedy"),
        (4, 3, 0, "greedy_copies"),
    ]
    seconds = [launch.ended - launch.started - costs.seconds(launch.work) for launch in heads]
    assert seconds == [2.5 + 3.0, 2.5 + 3.0, 2 * (2.5 + 3.0)]


def test_a_launch_of_several_passes_costs_each_of_them() -> None:
    launches = list(
        Simulation(config_of(policy="atomic"), all_at_once(traced("a", (4,))), COSTS).run()
    )
    assert [launch.work.num_passes for launch in launches] == [NUM_PLANES]
    assert launches[0].ended == 0.25 + NUM_PLANES * 4.0 + 1.0


def test_a_deterministic_engine_pads_every_launch_to_one_bucket() -> None:
    config = config_of(policy="atomic")
    simulation = Simulation(config, all_at_once(traced("a", (4, 1))), COSTS, is_deterministic=True)
    works = [work for launch in simulation.run() for work in (launch.work, launch.head) if work]
    buckets = {(work.kind, work.bucket) for work in works}
    assert buckets == {(LaunchKind.RECURRENT, 8), (LaunchKind.HEAD, 4)}


@pytest.mark.parametrize("call_seconds", [0.5, 30.0])
def test_a_deterministic_engine_calls_the_single_pass_for_each_of_several(
    call_seconds: float,
) -> None:
    costs = replace(
        COSTS,
        overheads={LaunchKind.PREFILL: {8: 99.0}, LaunchKind.RECURRENT: {8: 2.0}},
        host_item_seconds=0.125,
        host_call_seconds=call_seconds,
    )
    config = config_of(policy="atomic")
    requests = all_at_once(traced("a", (4,)))
    (launch,) = Simulation(config, requests, costs, is_deterministic=True).run()
    assert (launch.batch.launch, launch.work.kind) == (LaunchKind.PREFILL, LaunchKind.RECURRENT)
    assert launch.work.num_calls == launch.work.num_passes == NUM_PLANES
    # Scheduled once, packed and called for each pass; a pass takes 2 + max(4, 8 * 0.5) seconds.
    assert launch.called == 0.25 + NUM_PLANES * 0.125
    head_called = launch.called + NUM_PLANES * call_seconds
    assert launch.returned == head_called + call_seconds
    passes_ended = max(launch.called + NUM_PLANES * 6.0, head_called - call_seconds + 6.0)
    assert launch.ended == max(passes_ended, head_called) + 1.0


def test_an_idle_scheduler_waits_for_the_next_request_and_sees_it_between_launches() -> None:
    early, late, meanwhile = traced("a", (4, 1)), traced("b", (4,)), traced("c", (4,))
    arrivals = [Arrival(1000.0, late), Arrival(2.0, early), Arrival(2.125, meanwhile)]
    launches = list(Simulation(config_of(), TimedArrivals(arrivals), COSTS).run())
    seen = {
        arrival.request.request_id: (arrival.time, launch.index, launch.scheduled)
        for launch in launches
        for arrival in launch.arrivals
    }
    assert seen["a"] == (2.0, 0, 2.0)
    time, index, scheduled = seen["c"]
    # The host makes the launch ahead at once, and sees the request before it.
    assert (time, index) == (2.125, 1)
    assert scheduled == launches[0].returned > time
    assert seen["b"][2] == 1000.0


def test_a_closed_loop_keeps_so_many_requests_under_way() -> None:
    requests = [traced(str(i), (4, 2, 2)[: 1 + i % 3]) for i in range(9)]
    simulation = Simulation(config_of(), ClosedArrivals(iter(requests), 3), COSTS)
    under_way, loads = 0, []
    for launch in simulation.run():
        under_way += len(launch.arrivals)
        loads.append(under_way)
        under_way -= len(launch.update.finished)
    assert set(loads[: loads.index(2)]) == {3}
    assert under_way == 0
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests)


def test_a_stop_token_ends_a_request_where_its_output_has_it() -> None:
    request = request_of(
        max_tokens=9,
        stop=frozenset({3}),
        payload=SimulatedOutput(token_ids=(5, 5, 3)),  # type: ignore[arg-type]
    )
    list(Simulation(config_of(), all_at_once(request), COSTS).run())
    assert request.output_token_ids == [5, 5, 3]
    assert request.finish_reason is FinishReason.STOP


def test_a_scored_prompt_runs_through_score_launches() -> None:
    request = request_of(max_tokens=1, prompt=tuple(range(9)), scoring=PromptScoring.LAST_LOOP)
    launches = list(Simulation(config_of(), all_at_once(request), COSTS).run())
    assert [launch.batch.launch for launch in launches].count(LaunchKind.SCORE) == 2
    assert len(request.prompt_scores[0].logprobs) == 8


def test_what_could_never_run_is_refused_when_it_comes() -> None:
    simulation = Simulation(config_of(), all_at_once(request_of(max_tokens=99)), COSTS)
    with pytest.raises(RequestError, match="max_model_len"):
        list(simulation.run())


def test_a_policy_that_takes_nothing_is_an_error_and_no_endless_loop() -> None:
    idle = Policy(
        name="idle",
        choose=lambda view: (Stage.PREFILL, True),
        take=lambda view, stage: Selection(()),
    )
    simulation = Simulation(config_of(), all_at_once(request_of()), COSTS, policy=idle)
    with pytest.raises(InterfaceError, match="from policy idle"):
        simulation.step()


@st.composite
def rules(draw: st.DrawFn) -> ExitRule:
    mode = draw(st.sampled_from([mode for mode in ExitMode if mode is not ExitMode.TRACE]))
    max_loops = draw(st.integers(1, NUM_PLANES))
    options = ExitOptions(
        mode=mode,
        threshold=draw(st.sampled_from([0.0, 0.3, 0.6, 1.0])),
        min_loops=draw(st.integers(1, max_loops)),
        max_loops=max_loops,
    )
    return resolve_exit(options, ExitOptions(), NUM_PLANES)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_depths_alone_bring_back_every_launch_of_every_exit_mode(data: st.DataObject) -> None:
    """Signals of an executor decide, and the same launches follow from the depths they led to."""
    policy = data.draw(st.sampled_from(sorted(POLICIES)))
    run_ahead = 0 if POLICIES[policy].needs_depths else data.draw(st.integers(0, 4))
    config = config_of(policy=policy, run_ahead=run_ahead)
    chosen = data.draw(st.lists(rules(), min_size=1, max_size=6))
    live = [
        request_of(
            str(i),
            tuple(range(1 + 2 * i)),
            max_tokens=3 + i,
            exit_rule=rule,
            payload=StubPayload(i),
        )
        for i, rule in enumerate(chosen)
    ]
    times = data.draw(st.lists(st.floats(0, 90), min_size=len(live), max_size=len(live)))
    executor = StubExecutor(config)
    ahead = Ahead(executor)
    simulation = Simulation(config, _timed(times, live), COSTS, executor=ahead)
    simulation.listener = ahead
    launches = list(simulation.run())
    check_drained(simulation.scheduler, executor)
    copies = [
        request_of(
            one.request_id,
            one.prompt_token_ids,
            one.max_tokens,
            one.exit_rule,
            SimulatedOutput(tuple(one.exit_depths)),  # type: ignore[arg-type]
        )
        for one in live
    ]
    again = list(Simulation(config, _timed(times, copies), COSTS).run())
    assert facts(again) == facts(launches)
    assert [copy.exit_depths for copy in copies] == [one.exit_depths for one in live]
    assert [launch.ended for launch in again] == [launch.ended for launch in launches]


class Ahead(SimulationListener):
    """An executor that runs launches when they are handed out, as a device does."""

    def __init__(self, executor: StubExecutor) -> None:
        self.acquire, self.release = executor.acquire, executor.release
        self._executor = executor
        self._results: dict[Batch, LaunchResult] = {}

    def dispatched(self, launch: SimulatedLaunch) -> None:
        self._results[launch.batch] = self._executor.execute(launch.batch)

    def execute(self, batch: Batch) -> LaunchResult:
        return self._results.pop(batch)


def _timed(times: list[float], requests: list[Request]) -> Arrivals:
    return TimedArrivals(map(Arrival, times, requests))


def seconds_for(num_launches: int) -> float:
    """Wall-clock seconds of so many launches at 16 resident requests, as a server runs them."""
    config = SchedulerConfig(
        num_planes=NUM_PLANES, vocab_size=100, num_blocks=4096, max_model_len=512
    )

    def requests() -> object:
        for index in range(num_launches):
            depths = (NUM_PLANES, *(1 + (index * 7 + i * 13) % NUM_PLANES for i in range(199)))
            yield traced(str(index), depths, num_prompt=128)

    simulation = Simulation(config, ClosedArrivals(requests(), 16), COSTS)  # type: ignore[arg-type]
    start = perf_counter()
    assert sum(1 for _ in islice(simulation.run(), num_launches)) == num_launches
    assert simulation.scheduler.num_active == 16
    return perf_counter() - start


def test_five_thousand_launches_take_a_few_seconds_at_most() -> None:
    assert seconds_for(5_000) < 10.0


@pytest.mark.slow
def test_a_hundred_thousand_launches_take_less_than_thirty_seconds() -> None:
    assert seconds_for(100_000) < 30.0
