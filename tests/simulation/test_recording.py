"""Simulated runs leave logs that everything reads which reads an engine's."""

from dataclasses import replace
from itertools import pairwise

import pytest
from simulations import COSTS, PLAN, SMALL, simulated_events

from looped.engine.events import EndEvent, EngineEvent, LaunchEvent, RequestEvent
from looped.errors import LoopedError, UsageError
from looped.plots import draw_log
from looped.record.launch_log import read_launch_log, write_launch_log
from looped.record.timeline import Timeline
from looped.record.trace_export import to_chrome_trace
from looped.sched import (
    POLICIES,
    CostModel,
    ExitMode,
    FinishReason,
    LaunchKind,
    RowStatus,
    Scheduler,
    SimulatedExecutor,
    wavefront_policy,
)
from looped.simulation.options import parse_policy
from looped.simulation.replay import replay
from looped.simulation.runs import log_writer, scheduler_config, simulate


def test_a_log_of_a_simulation_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = log_writer(path, COSTS, seed=0)
    events = simulated_events()
    for event in events:
        writer.write(event)
    writer.close()
    log = read_launch_log(path)
    assert list(log.events) == events
    assert log.meta["kind"] == "simulated"
    assert log.meta["cost_table"] == "made-up"


def test_a_log_on_estimated_costs_says_so(tmp_path):
    path = tmp_path / "run.jsonl"
    writer = log_writer(path, CostModel.from_json(COSTS.to_json() | {"is_estimate": True}), seed=0)
    writer.flush()
    writer.close()
    assert read_launch_log(path).meta["kind"] == "simulated, estimate"


@pytest.mark.parametrize(
    "policy", [*sorted(POLICIES), "wavefront:window=3", "slack:target=0.02,costs=ouro-1.4b-h200"]
)
def test_replaying_a_simulation_comes_to_the_same_launches(policy, tmp_path):
    path = tmp_path / "run.jsonl"
    write_launch_log(path, simulated_events(max_decode_rows=2, **parse_policy(policy)), {})
    events = read_launch_log(path).events
    (result,) = replay(events)
    assert result.difference is None
    assert result.num_launches == sum(isinstance(event, LaunchEvent) for event in events)


@pytest.mark.parametrize("policy", [POLICIES["mixed"], wavefront_policy(2)])
def test_a_log_whose_policy_was_an_object_is_replayed_on_one_alone(policy, tmp_path):
    path = tmp_path / "run.jsonl"
    write_launch_log(path, simulated_events(policy=policy, prefill_chunk_size=8), {})
    events = read_launch_log(path).events
    with pytest.raises(LoopedError, match=f"calls itself '{policy.name}'; .*--policy NAME:KEY="):
        replay(events)
    (result,) = replay(events, policy=policy)
    assert result.difference is None


def test_a_policy_that_overrides_the_configurations_was_an_object():
    config = scheduler_config(PLAN.workload(0), {})
    for policy, is_object in ((None, False), (POLICIES["separate"], True)):
        scheduler = Scheduler(config, SimulatedExecutor(), policy)
        event = EngineEvent.of(
            scheduler, {}, engine_index=0, is_deterministic=False, records_gates=False
        )
        assert event.is_policy_object is is_object


def test_events_are_in_order_and_complete():
    events = simulated_events("separate")
    assert isinstance(events[0], EngineEvent)
    requests = [event for event in events if isinstance(event, RequestEvent)]
    ends = [event for event in events if isinstance(event, EndEvent)]
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    assert len(requests) == len(ends) == PLAN.num_requests
    assert all(end.reason is FinishReason.LENGTH for end in ends)
    assert [launch.record.index for launch in launches] == list(range(len(launches)))
    assert all(first.visible <= then.visible for first, then in pairwise(launches))
    by_index = {launch.record.index: launch for launch in launches}
    for event in requests:
        # Seen by the first launch that is scheduled once it has come.
        assert event.time <= by_index[event.launch_index].scheduled
        if event.launch_index:
            assert event.time > by_index[event.launch_index - 1].scheduled
    assert {launch.record.kind for launch in launches} == {LaunchKind.RECURRENT}
    assert all(bool(launch.tokens) <= (launch.record.head is not None) for launch in launches)
    assert max(launch.queues.waiting for launch in launches) > 0


@pytest.mark.parametrize("run_ahead", [0, 1, 2, 4])
@pytest.mark.parametrize("waits_for_device", [False, True])
def test_events_stand_where_an_engine_with_so_many_launches_ahead_has_them(
    run_ahead, waits_for_device
):
    events = []
    workload = replace(PLAN, exit_mode=ExitMode.OURO).workload(0)
    config = scheduler_config(workload, SMALL | {"run_ahead": run_ahead})
    simulate(workload, config, COSTS, sink=events.append, waits_for_device=waits_for_device)
    num_applied, num_dispatched = 0, 0
    for event in events:
        if isinstance(event, LaunchEvent):
            assert event.record.index == num_applied
            num_applied += 1
        assert event.launch_index >= num_dispatched
        num_dispatched = event.launch_index
        if isinstance(event, LaunchEvent):
            # It is applied with run_ahead launches behind it, or with fewer if no other could go.
            assert 1 <= event.launch_index - event.record.index <= run_ahead + 1
        else:
            assert event.num_applied == num_applied
            assert 0 <= event.launch_index - num_applied <= max(run_ahead, 1)
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    behind = [event.launch_index - event.record.index - 1 for event in launches]
    assert sum(count < run_ahead for count in behind) < len(launches) / 5
    for event, then in pairwise(launches):
        assert event.scheduled <= event.started <= event.dispatched <= event.awaited <= event.ended
        assert event.ended <= event.visible
        assert then.scheduled >= event.dispatched
        if waits_for_device:
            assert event.awaited == event.dispatched
        else:
            assert event.ended == event.visible
    # What a head said of each row stands with its item.
    for event in launches:
        statuses = [item.status for item in event.record.items]
        num_looked_at = 0 if event.record.head is None else event.record.head.num_rows
        num_ended = sum(item.depth is None for item in event.record.items)
        assert num_looked_at - num_ended <= sum(one is not None for one in statuses)
        assert sum(one is not None for one in statuses) <= num_looked_at
        assert statuses.count(RowStatus.LEFT) == len(event.tokens)


def test_the_same_seed_gives_the_same_run_and_another_one_does_not():
    assert simulated_events(seed=1) == simulated_events(seed=1)
    assert simulated_events(seed=1) != simulated_events(seed=2)


def test_every_policy_gets_the_same_requests():
    def come(policy):
        events = simulated_events(policy)
        return [
            (event.time, event.request_id, event.num_prompt_tokens, event.exit_rule)
            for event in events
            if isinstance(event, RequestEvent)
        ]

    assert come("mixed") == come("atomic") == come("separate")


def test_pictures_and_traces_are_those_of_an_engine(tmp_path):
    events = simulated_events()
    assert all(path.stat().st_size > 1000 for path in draw_log(tmp_path, "run", Timeline(events)))
    assert to_chrome_trace([("run", tuple(events))])["traceEvents"]


def test_a_deterministic_engine_splits_its_prefill_launches():
    workload = PLAN.workload(0)
    config = scheduler_config(workload, SMALL | {"policy": "atomic"})
    launches = simulate(workload, config, COSTS, is_deterministic=True).launches
    calls = {launch.record.num_calls for launch in launches}
    assert calls == {1, 4}


def test_costs_of_a_model_with_other_loops_are_refused():
    workload = PLAN.workload(0)
    other = CostModel.from_json(COSTS.to_json() | {"num_planes": 2})
    with pytest.raises(UsageError, match="of a model of 2 loops, the workload of one of 4"):
        simulate(workload, scheduler_config(workload, SMALL), other)


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="max_num_batched_tokens must be >= max_num_seqs"):
        scheduler_config(PLAN.workload(0), {"max_num_seqs": 300, "max_num_batched_tokens": 256})
