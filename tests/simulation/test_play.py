"""Workloads on an engine: everything is served, and the simulator can be held against it."""

import pytest
from engines import make_engine
from simulations import COSTS

from looped.engine.llm_engine import LLMEngine
from looped.sched import ExitMode, ExitOptions
from looped.simulation.loads.workload import Lengths
from looped.simulation.play import play
from looped.simulation.replay import replay
from looped.simulation.runs import WorkloadPlan, simulate
from looped.simulation.summary import Summary

PLAN = WorkloadPlan(
    num_planes=4,
    num_requests=6,
    prompt_tokens=Lengths(3, 40),
    output_tokens=Lengths(2, 9),
    rate=200.0,
    vocab_size=300,
)


@pytest.fixture
def build(tiny_folder):
    first = make_engine(tiny_folder)

    def build(observer):
        return LLMEngine(
            first.loaded,
            first.config,
            executables=first.runner.executables,
            observer=observer,
        )

    return build


def test_an_engine_serves_a_workload_at_its_depths(build):
    workload = PLAN.workload(1)
    played = play(build, workload)
    requests = [arrival.request for arrival in workload.arrivals().due(1e9)]
    tokens = played.timeline.tokens
    for request in requests:
        depths = tuple(token.token.exit_depth for token in tokens[request.request_id, 0])
        assert depths == request.exit_rule.trace
    starts = [played.arrivals[request.request_id, 0] for request in requests]
    times = [arrival.time for arrival in workload.arrivals().due(1e9)]
    assert [start - starts[0] for start in starts] == pytest.approx(
        [time - times[0] for time in times]
    )
    # Seen by the engine only once they had come.
    for name, event in played.timeline.requests.items():
        assert event.time >= played.arrivals[name] - 1e-3
    assert Summary.of(played.timeline, played.arrivals).num_requests == 6
    (result,) = replay(played.events)
    assert result.difference is None


def test_what_the_gate_decided_can_be_simulated(build):
    workload = PLAN.workload(2)
    exits = ExitOptions(threshold=0.5, min_loops=1)
    played = play(build, workload, exits=exits)
    recorded = played.recorded(workload)
    assert {one.exit_rule.mode for one in recorded.requests} == {ExitMode.OURO}
    engine = played.events[0]
    timeline = simulate(recorded, engine.scheduler_config(), COSTS)
    for name, own in played.timeline.tokens.items():
        depths = [token.token.exit_depth for token in own]
        assert [token.token.exit_depth for token in timeline.tokens[name]] == depths


def test_a_closed_loop_sends_the_next_request_when_one_ends(build):
    plan = WorkloadPlan(**{**vars(PLAN), "rate": None, "concurrency": 2})
    played = play(build, plan.workload(3), waits_for_device=True)
    launches = played.timeline.launches
    assert max(sum(vars_of(launch.queues)) for launch in launches) <= 2
    assert len(played.timeline.ends) == 6


def vars_of(queues):
    return (queues.waiting, queues.prefill, queues.recurrent)
