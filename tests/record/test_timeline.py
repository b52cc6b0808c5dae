"""A log put in order: whose token is whose."""

from dataclasses import replace
from itertools import pairwise

from simulations import events_one_by_one, under_one_id
from stub_target import OPTIONS, play

from looped.engine.events import EndEvent, RequestEvent
from looped.engine.records import ItemRecord, LaunchRecord
from looped.plots.gantt import injection_times
from looped.record.timeline import Timeline, Window, item_depths, num_ended_rows, token_loops
from looped.sched import FinishReason, ItemKind, LaunchKind
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
    timeline = Timeline([*events, EndEvent(9.0, "a", 2, 0, 0, FinishReason.ABORT, 0)])
    assert list(timeline.requests) == [
        ("a#2", 0), ("a", 0), ("a", 1), ("a#3", 0), ("a#3", 1), ("a#3", 2), ("a#2#2", 0),
    ]  # fmt: skip
    assert [event.time for event in timeline.requests.values()] == list(range(7))
    assert list(timeline.ends) == [("a#3", 2)]


def test_the_device_has_one_launch_at_a_time():
    timeline = play("A2", options=replace(OPTIONS, run_ahead=2)).timeline
    spans = timeline.device_spans()
    assert [launch for launch, _ in spans] == timeline.launches
    assert all(before.end <= after.start for (_, before), (_, after) in pairwise(spans))
    assert any(launch.started < window.start for launch, window in spans)
    # On the stub passes take 1 or 2 seconds, all of a prompt 8, and a head 0.125.
    assert {window.seconds for _, window in spans} <= {1.0, 1.125, 2.0, 2.125, 8.125}


def test_waits_are_found_by_when_they_began():
    timeline = play("D0").timeline
    first, second = timeline.launches[:2]
    assert timeline.host_wait_in(Window(first.awaited, second.awaited)) == first.host_wait
    assert timeline.host_wait_in(Window(second.awaited, second.awaited)) == 0
    assert timeline.host_wait_in(Window(0.0, 1e9)) == sum(
        launch.host_wait for launch in timeline.launches
    )


def test_rows_that_had_ended_have_no_depths():
    decode = ItemRecord("a", 0, ItemKind.DECODE, None, 12, 1, 0)
    prompt = ItemRecord("b", 0, ItemKind.PROMPT, 1, 0, 7, 1)
    record = LaunchRecord(
        index=3,
        kind=LaunchKind.RECURRENT,
        bucket=8,
        num_rows=8,
        num_passes=1,
        num_calls=1,
        num_writes=0,
        num_readbacks=0,
        head=None,
        items=(decode, prompt),
    )
    assert (num_ended_rows(record), list(item_depths(record, decode))) == (1, [])
    assert token_loops(record, ItemKind.DECODE) == 0
    assert token_loops(record, ItemKind.PROMPT) == 7
