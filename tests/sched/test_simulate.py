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
    ClosedArrivals,
    CostModel,
    ExitMode,
    ExitOptions,
    ExitRule,
    FinishReason,
    InterfaceError,
    LaunchKind,
    Policy,
    PromptScoring,
    Request,
    RequestError,
    SchedulerConfig,
    Selection,
    SimulatedLaunch,
    SimulatedOutput,
    Simulation,
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
    kinds = [launch.batch.launch for launch in launches]
    assert kinds.count(LaunchKind.CODA) == 4
    assert kinds.count(LaunchKind.RECURRENT) == NUM_PLANES + 1 + 3 + 2


def test_the_clock_moves_by_the_host_and_by_the_bucket_of_each_launch() -> None:
    requests = [traced("a", (4, 2), num_prompt=10), traced("b", (4, 3))]
    config = config_of(policy="separate")
    simulation = Simulation(config, all_at_once(*requests), COSTS, waits_for_device=True)
    launches = list(simulation.run())
    assert launches[0].scheduled == 0.0
    assert all(first.ended == then.scheduled for first, then in pairwise(launches))
    for launch in launches:
        assert launch.called == launch.started == launch.scheduled + 0.25
        assert launch.visible == launch.ended
        if launch.batch.launch is LaunchKind.CODA:
            assert launch.ended == launch.started + 1.0
        else:
            bucket = launch.work.bucket
            assert bucket >= launch.batch.num_rows
            assert launch.ended == launch.started + max(4.0, bucket * 0.5)
    assert {launch.work.bucket for launch in launches} >= {2, 4}


def test_the_host_goes_on_after_what_it_does_not_read_and_the_device_keeps_the_order() -> None:
    request = traced("a", (4, 2))
    launches = list(Simulation(config_of(policy="separate"), all_at_once(request), COSTS).run())
    kinds = "RRRRCRRC"
    assert [launch.batch.launch.name[0] for launch in launches] == list(kinds)
    assert [launch.batch.is_read for launch in launches] == [kind == "C" for kind in kinds]
    for first, then in pairwise(launches):
        assert then.scheduled == first.visible
        assert then.started == max(then.called, first.ended)
    assert [launch.called for launch in launches[:4]] == [0.25, 0.5, 0.75, 1.0]
    assert launches[4].ended == 0.25 + 4 * 4.0 + 1.0 == launches[4].visible
    assert launches[5].called == launches[5].started == launches[4].ended + 0.25


def test_the_device_begins_with_a_call_and_the_host_goes_on_when_it_returns() -> None:
    costs = replace(COSTS, host_call_seconds=2.0)
    request = traced("a", (4, 2))
    launches = list(Simulation(config_of(policy="separate"), all_at_once(request), costs).run())
    for launch in launches:
        assert launch.started >= launch.called == launch.scheduled + 0.25
        assert launch.returned == launch.called + 2.0
        if launch.batch.is_read:
            assert launch.visible == max(launch.ended, launch.returned)
        else:
            assert launch.visible == launch.returned
    assert launches[0].started == launches[0].called
    # The LM head is done before its call has returned.
    quick = replace(costs, weight_floor=0.5, row_seconds=0.0)
    request = traced("b", (4, 2))
    launches = list(Simulation(config_of(policy="separate"), all_at_once(request), quick).run())
    assert all(launch.visible == launch.returned > launch.ended for launch in launches)


def test_a_launch_of_several_passes_costs_each_of_them() -> None:
    launches = list(
        Simulation(config_of(policy="atomic"), all_at_once(traced("a", (4,))), COSTS).run()
    )
    assert [launch.work.num_passes for launch in launches] == [NUM_PLANES, 0]
    assert launches[0].ended == 0.25 + NUM_PLANES * 4.0


def test_a_deterministic_engine_pads_every_launch_to_one_bucket() -> None:
    config = config_of(policy="atomic")
    simulation = Simulation(config, all_at_once(traced("a", (4, 1))), COSTS, is_deterministic=True)
    buckets = {(launch.work.kind, launch.work.bucket) for launch in simulation.run()}
    assert buckets == {(LaunchKind.RECURRENT, 8), (LaunchKind.CODA, 4)}


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
    launch, _ = Simulation(config, requests, costs, is_deterministic=True).run()
    assert (launch.batch.launch, launch.work.kind) == (LaunchKind.PREFILL, LaunchKind.RECURRENT)
    assert launch.work.num_calls == launch.work.num_passes == NUM_PLANES
    # Scheduled once, packed and called for each pass; a pass takes 2 + max(4, 8 * 0.5) seconds.
    assert launch.called == 0.25 + NUM_PLANES * 0.125
    assert launch.returned == launch.called + NUM_PLANES * call_seconds
    last_called = launch.returned - call_seconds
    assert launch.ended == max(launch.called + NUM_PLANES * 6.0, last_called + 6.0)


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
    assert (time, index) == (2.125, 1)
    assert scheduled == launches[0].visible > time
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
    config = config_of(
        policy=data.draw(st.sampled_from(sorted(POLICIES))),
        min_coda_batch_size=data.draw(st.integers(1, 3)),
    )
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
    simulation = Simulation(config, _timed(times, live), COSTS, executor=executor)
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
