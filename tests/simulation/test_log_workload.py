"""Requests of a log, simulated again: one engine's, each its own."""

from dataclasses import replace

import pytest
from engines import drain_samples, logged_engine
from simulations import COSTS, events_one_by_one, simulated_events, under_one_id

from looped.engine.events import EndEvent, LaunchEvent, RequestEvent
from looped.errors import UsageError
from looped.record.timeline import Timeline
from looped.sampling_params import SamplingParams
from looped.sched import CostModel, FinishReason
from looped.simulation.loads.depths import FullDepth
from looped.simulation.loads.log_workload import workload_of_log
from looped.simulation.loads.workload import Workload
from looped.simulation.runs import simulate


def test_requests_keep_times_lengths_and_depths():
    events = simulated_events()
    timeline = Timeline(events)
    requests = workload_of_log(events, 4)
    start = timeline.requests["0", 0].time
    for index, one in enumerate(requests):
        event = timeline.requests[str(index), 0]
        assert one.prompt_tokens == event.num_prompt_tokens
        assert one.arrival_time == event.time - start
        assert one.depths == tuple(t.token.exit_depth for t in timeline.tokens[str(index), 0])


def hits(events):
    """Where the prompts began to be computed, behind what the prefix cache held, in order."""
    firsts = {}
    for event in events:
        if isinstance(event, RequestEvent):
            firsts[event.request_id, event.sample_index] = None
        elif isinstance(event, LaunchEvent):
            for item in event.record.items:
                name = item.request_id, item.sample_index
                firsts[name] = item.first_position if firsts[name] is None else firsts[name]
    return list(firsts.values())


def test_prompts_of_an_engine_are_found_again_where_its_cache_found_them(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    text = list(range(3, 70))
    prompts = [text[:40], text[:60], [9, *text[:40]], text[:20] + [7] * 20, text[:50], text[:16]]
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=2, ignore_eos=True, n=1 + index % 2, temperature=1.0)
        engine.add_request(str(index), prompt, params)
        drain_samples(engine)
    recorded = hits(events)
    assert recorded == [0, 32, 48, 0, 16, 32, 48, 0, 0]
    # Costs that let every request be done before the next one, as it was, but not its samples.
    costs = CostModel.from_json(
        {
            name: value * 1e-4 if isinstance(value, float) else value
            for name, value in COSTS.to_json().items()
        }
    )
    workload = Workload(requests=workload_of_log(events, 4), depths=FullDepth(4), num_planes=4)
    again = []
    simulate(workload, events[0].scheduler_config(), costs, sink=again.append)
    assert hits(again) == recorded


def test_an_id_that_comes_again_is_another_request():
    events = events_one_by_one()
    requests = workload_of_log(under_one_id(events), 4)
    assert len(requests) == 12
    assert requests == workload_of_log(events, 4)


def test_a_request_that_failed_is_left_out():
    events = simulated_events()
    place = next(i for i, event in enumerate(events) if isinstance(event, EndEvent))
    events[place] = replace(events[place], reason=FinishReason.ERROR)
    assert len(workload_of_log(events, 4)) == 11


def test_a_log_without_requests_has_none():
    assert workload_of_log(simulated_events()[:1], 4) == []


def test_several_engines_are_refused():
    events = simulated_events()
    second = replace(events[0], engine_index=1)
    with pytest.raises(UsageError, match="expected a log of one engine"):
        workload_of_log([*events, second], 4)


def test_a_log_of_another_model_is_refused():
    with pytest.raises(UsageError, match=r"a model of 4 loops, the cost table of one of 2"):
        workload_of_log(simulated_events(), 2)


def test_a_log_that_lacks_its_engine_is_refused():
    with pytest.raises(UsageError, match="expected the log to begin with an engine"):
        workload_of_log(simulated_events()[1:], 4)


def test_a_log_that_lacks_a_request_is_refused():
    events = [event for event in simulated_events() if not isinstance(event, RequestEvent)]
    with pytest.raises(UsageError, match=r"misses the line of request '\d+', sample 0"):
        workload_of_log(events, 4)
