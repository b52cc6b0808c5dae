"""Exit depths as they are recorded: a whole list at any moment, and one that replays the run."""

import json
from pathlib import Path

import pytest
from command_line import looped
from engines import SMALL_FLAGS, complete, logged_engine

from looped.engine.events import EndEvent
from looped.engine.observer import LaunchObserver, LaunchRecorder
from looped.errors import UsageError
from looped.record.exit_trace import ExitTraceRecorder, ExitTraceWriter, recording_exits
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions
from looped.text.request_file import read_exit_trace

LIVE = ("--exit-threshold", 0.4, "--min-loops", 1)
"""Exits that differ from token to token on the tiny checkpoint."""


def traced_engine(folder, path, events=None):
    """An engine whose exits are recorded, and the recorder, which forwards to a log of events."""
    log = LaunchRecorder([].append if events is None else events.append)
    recorder = ExitTraceRecorder(ExitTraceWriter(path), log)
    engine = logged_engine(folder, [].append)
    engine._observer = recorder
    recorder.built(engine.scheduler, {}, is_deterministic=False, records_gates=False)
    return engine, recorder


def live_params(num_tokens, **options):
    exits = ExitOptions(threshold=0.4, min_loops=1)
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True, exit=exits, **options)


def test_the_file_is_a_whole_list_after_every_addition(tmp_path):
    path, lists = tmp_path / "trace.json", [[4, 1, 2], [], [4], [4] * 5000]
    writer = ExitTraceWriter(path)
    for count, depths in enumerate(lists, start=1):
        writer.add(depths)
        assert json.loads(path.read_text()) == lists[:count]
    writer.close()
    assert read_exit_trace(path, 4) == [tuple(depths) for depths in lists]


def test_a_trace_is_never_overwritten_and_needs_a_folder(tmp_path):
    (tmp_path / "trace.json").write_text("mine")
    with (
        pytest.raises(UsageError, match="exists; choose another name"),
        recording_exits(tmp_path / "trace.json", LaunchObserver()),
    ):
        pass
    with pytest.raises(UsageError, match="is not a folder"):
        ExitTraceWriter(tmp_path / "no" / "trace.json")
    assert (tmp_path / "trace.json").read_text() == "mine"


def test_without_a_path_the_given_observer_listens_alone():
    observer = LaunchObserver()
    with recording_exits(None, observer) as same:
        assert same is observer


def test_without_a_request_there_is_no_file(tmp_path, caplog):
    with recording_exits(tmp_path / "trace.json", LaunchObserver()):
        pass
    assert not list(tmp_path.iterdir())
    assert "no request came" in caplog.text


def test_requests_stand_in_order_of_arrival_whatever_ends_first(tiny_folder, tmp_path):
    path, events = tmp_path / "trace.json", []
    engine, recorder = traced_engine(tiny_folder, path, events)
    lengths = (9, 2, 5)
    completions = complete(engine, [[311, 225], [7], [9]], [live_params(n) for n in lengths])
    recorder.close()
    traces = read_exit_trace(path, 3)
    assert traces == [completion.exit_depths for completion in completions]
    assert len({depth for trace in traces for depth in trace}) > 1
    # What listens behind it has heard everything, too.
    ends = [event for event in events if isinstance(event, EndEvent)]
    assert [event.request_id for event in ends] == ["1", "2", "0"]


def test_a_request_is_written_as_soon_as_all_before_it_are_over(tiny_folder, tmp_path):
    path = tmp_path / "trace.json"
    engine, recorder = traced_engine(tiny_folder, path)
    engine.add_request("long", [3], live_params(40))
    engine.add_request("short", [5], live_params(1))
    while len(engine.scheduler.active_requests) != 1:
        engine.step()
    assert not path.exists()
    engine.abort("long")
    long, short = read_exit_trace(path, 2)
    assert long[0] == short[0] == 4
    assert len(short) == 1
    recorder.close()


def test_what_is_under_way_at_the_end_has_the_tokens_that_came(tiny_folder, tmp_path):
    path = tmp_path / "trace.json"
    engine, recorder = traced_engine(tiny_folder, path)
    engine.add_request("a", [3], live_params(40))
    num_tokens = 0
    while num_tokens < 3:
        num_tokens += len(engine.step().tokens)
    engine.add_request("b", [5], live_params(40))
    recorder.close()
    engine.abort("a")
    engine.abort("b")
    first, second = read_exit_trace(path, 2)
    assert (len(first), second) == (3, ())


def test_every_sample_has_a_list_of_its_own(tiny_folder, tmp_path):
    path = tmp_path / "trace.json"
    engine, recorder = traced_engine(tiny_folder, path)
    engine.add_request("a", [3, 4], live_params(4, n=3, temperature=1.0, seed=1))
    engine.add_request("b", [5], live_params(2))
    while engine.has_unfinished_requests():
        engine.step()
    recorder.close()
    assert list(map(len, read_exit_trace(path, 4))) == [4, 4, 4, 2]


def test_a_full_disk_ends_the_file_and_not_the_requests(tmp_path, caplog):
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip("no /dev/full here")
    writer = ExitTraceWriter(tmp_path / "trace.json")
    writer._file = path.open("wb")
    writer.add([4])
    writer.add([4])
    writer.close()
    assert writer._file.closed
    assert writer.failure is not None
    assert caplog.text.count("ends here") == 1


def test_a_recorded_run_is_replayed_token_by_token_and_depth_by_depth(tiny_folder, tmp_path):
    trace = tmp_path / "trace.json"
    options = (
        *("--prompt-ids", "311,225,7", "--prompt-ids", "9", "--prompt-ids", "3,4,5,6,7,8"),
        *("--model", tiny_folder, "--max-tokens", 12, "--ignore-eos", "--json"),
        *SMALL_FLAGS,
    )
    live = looped("generate", *options, *LIVE, "--record-trace", trace)
    done = [json.loads(line) for line in live.stdout.splitlines()]
    assert [line["exit_depths"] for line in done] == json.loads(trace.read_text())
    assert len({depth for line in done for depth in line["exit_depths"]}) > 1
    replayed = looped("generate", *options, "--exit-trace", trace)
    for line, other in zip(done, map(json.loads, replayed.stdout.splitlines()), strict=True):
        assert line["token_ids"] == other["token_ids"]
        assert line["exit_depths"] == other["exit_depths"]
    again = looped("generate", *options, *LIVE, "--record-trace", trace, check=False)
    assert (again.returncode, "exists; choose another name" in again.stderr) == (2, True)


def test_an_empty_list_replays_as_all_loops(tiny_folder, tmp_path):
    (tmp_path / "trace.json").write_text("[[], [4, 1]]")
    done = looped(
        "generate", "--prompt-ids", "9", "--prompt-ids", "8", "--model", tiny_folder, "--json",
        "--exit-trace", tmp_path / "trace.json", "--max-tokens", 3, "--ignore-eos", *SMALL_FLAGS,
    )  # fmt: skip
    depths = [json.loads(line)["exit_depths"] for line in done.stdout.splitlines()]
    assert depths == [[4, 4, 4], [4, 1, 4]]
