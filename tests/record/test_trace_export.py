"""A launch log as a Chrome trace: what viewers load, with events that nest."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from command_line import looped
from simulations import simulated_events
from stub_target import OPTIONS, play

from looped.record.launch_log import LaunchLogWriter
from looped.record.trace_export import to_chrome_trace


@pytest.fixture(scope="module")
def run():
    return play("A0")


@pytest.fixture(scope="module")
def events(run):
    trace = json.loads(json.dumps(to_chrome_trace([("A0", run.events)])))
    assert trace["displayTimeUnit"] == "ms"
    return trace["traceEvents"]


def test_every_event_has_what_the_format_asks_for(events):
    for event in events:
        assert {"name", "ph", "pid"} <= event.keys()
        assert event["ph"] in "XiCM"
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert {"tid", "args"} <= event.keys()


def test_complete_events_of_a_track_nest(events):
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 2 + 3
    for spans in tracks.values():
        for start, end in spans:
            for other_start, other_end in spans:
                apart = end <= other_start or other_end <= start
                inside = start >= other_start and end <= other_end
                around = other_start >= start and other_end <= end
                assert apart or inside or around


def test_launches_that_are_out_overlap_and_the_host_does_one_thing_at_a_time():
    run = play("A2", options=replace(OPTIONS, run_ahead=2))
    events = to_chrome_trace([("A2", run.events)])["traceEvents"]
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert {track for process, track in spans if process == 1} == {0, 1, 2, 3}
    for track in spans.values():
        track.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(track))
    launches = [
        event for event in events if event["ph"] == "X" and event["tid"] and event["pid"] == 1
    ]
    assert len(launches) == len(run.timeline.launches)
    firsts = sorted(launches, key=lambda event: event["ts"])[:3]
    assert max(event["ts"] for event in firsts) < min(
        event["ts"] + event["dur"] for event in firsts
    )


def test_a_head_is_part_of_its_launch(run, events):
    with_heads = [launch for launch in run.timeline.launches if launch.record.head]
    shown = [event for event in events if event["ph"] == "X" and "head rows" in event["args"]]
    assert [event["args"]["head rows"] for event in shown] == [
        launch.record.head.num_rows for launch in with_heads
    ]
    left = [event for event in events if event.get("args", {}).get("head") == "left"]
    assert len(left) == sum(map(len, run.timeline.tokens.values()))


def test_items_of_one_slot_in_one_launch_lie_on_tracks_of_their_own():
    log = tuple(simulated_events("wavefront", prefill_chunk_size=8))
    events = to_chrome_trace([("wavefront", log)])["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["pid"] == 2 and event["name"] == "thread_name"
    }
    assert [names[track] for track in sorted(names)] == [
        title
        for slot in range(4)
        for title in (f"slot {slot}", *(f"slot {slot}, item {place}" for place in (2, 3, 4)))
    ]
    ends = defaultdict(float)
    for event in events:
        if event["ph"] == "X" and event["pid"] == 2:
            assert event["ts"] >= ends[event["tid"]] - 1e-3
            ends[event["tid"]] = event["ts"] + event["dur"]
    assert ends.keys() == names.keys()


def test_launches_items_tokens_and_queues_are_all_there(run, events):
    launches = run.timeline.launches
    counters = [event for event in events if event["ph"] == "C"]
    assert [event["args"]["recurrent"] for event in counters] == [
        launch.queues.recurrent for launch in launches
    ]
    items = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert len(items) == sum(len(launch.record.items) for launch in launches)
    assert any(event["name"] == "prompt, depth 0 to 3" for event in items)
    tokens = [event for event in events if event["name"].startswith("token ")]
    assert len(tokens) == sum(map(len, run.timeline.tokens.values()))
    first = next(event for event in events if event["ph"] == "X")
    assert first["ts"] == pytest.approx(1e6 * launches[0].scheduled)


def test_several_logs_lie_side_by_side(run):
    trace = to_chrome_trace([("A0", run.events), ("A2", play("A2").events)])
    assert {event["pid"] for event in trace["traceEvents"]} == {1, 2, 3, 4}


def test_the_command_writes_it(run, tmp_path):
    writer = LaunchLogWriter(tmp_path / "a0.jsonl")
    for event in run.events:
        writer.write(event)
    writer.close()
    target = tmp_path / "trace.json"
    assert looped("plot", tmp_path / "a0.jsonl", "--trace", target).stdout == f"{target}\n"
    assert json.loads(target.read_text()) == json.loads(
        json.dumps(to_chrome_trace([("a0", run.events)]))
    )
    again = looped("plot", tmp_path / "a0.jsonl", "--trace", target, check=False)
    assert (again.returncode, "pass --overwrite" in again.stderr) == (2, True)
    looped("plot", tmp_path / "a0.jsonl", "--trace", target, "--overwrite")
