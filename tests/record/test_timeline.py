"""A log put in order: whose token is whose."""

from dataclasses import replace

from simulations import events_one_by_one, under_one_id

from looped.engine.events import EndEvent, RequestEvent
from looped.plots.gantt import injection_times
from looped.record.timeline import Timeline
from looped.sched import FinishReason
from looped.simulation.summary import Summary


def test_requests_that_had_one_id_after_the_other_are_told_apart():
    events = events_one_by_one()
    own, same = Timeline(events), Timeline(under_one_id(events))
    assert list(same.requests)[:3] == [("same", 0), ("same#2", 0), ("same#3", 0)]
    assert len(same.requests) == len(same.ends) == len(own.requests)
    assert [len(tokens) for tokens in same.tokens.values()] == [
        len(tokens) for tokens in own.tokens.values()
    ]
    assert Summary.of(same).numbers == Summary.of(own).numbers
    assert injection_times(same) == injection_times(own) == []


def test_samples_stay_together_and_an_id_of_the_same_look_is_no_other_request():
    lines = [("a#2", 0), ("a", 0), ("a", 1), ("a", 0), ("a", 1), ("a", 2), ("a#2", 0)]
    request = next(one for one in events_one_by_one() if isinstance(one, RequestEvent))
    events = [
        replace(request, time=time, request_id=request_id, sample_index=sample_index)
        for time, (request_id, sample_index) in enumerate(lines)
    ]
    timeline = Timeline([*events, EndEvent(9.0, "a", 2, 0, FinishReason.ABORT, 0)])
    assert list(timeline.requests) == [
        ("a#2", 0), ("a", 0), ("a", 1), ("a#3", 0), ("a#3", 1), ("a#3", 2), ("a#2#2", 0),
    ]  # fmt: skip
    assert [event.time for event in timeline.requests.values()] == list(range(7))
    assert list(timeline.ends) == [("a#3", 2)]
