"""Requests of a log, simulated again: one engine's, each its own."""

from dataclasses import replace

import pytest
from simulations import events_one_by_one, simulated_events, under_one_id

from looped.errors import UsageError
from looped.launch_events import EndEvent, RequestEvent
from looped.sched import FinishReason
from looped.simulation.log_workload import workload_of_log
from looped.timeline import Timeline


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


def test_a_log_that_lacks_a_request_is_refused():
    events = [event for event in simulated_events() if not isinstance(event, RequestEvent)]
    with pytest.raises(UsageError, match=r"misses the line of request '\d+', sample 0"):
        workload_of_log(events, 4)
