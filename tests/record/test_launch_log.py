"""The launch log: what an engine did, as lines that can be read back; nothing where it is off."""

import ast
import gzip
import json
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import looped
from engines import SMALL, SMALL_FLAGS, complete, logged_engine, make_engine

import looped as package
from looped.engine.events import AbortEvent, FaultEvent, LaunchEvent
from looped.engine.observer import LaunchObserver, LaunchRecorder
from looped.engine.records import ItemRecord
from looped.errors import LoopedError, UsageError
from looped.record.launch_log import LaunchLogWriter, read_launch_log, recording, write_launch_log
from looped.record.timeline import Timeline
from looped.sampling_params import SamplingParams
from looped.sched import FinishReason, ItemKind, RowStatus, Stage

PROMPTS = [[311, 225, 7], list(range(3, 43)), [9]]


def params(num_tokens):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


@pytest.fixture(scope="module")
def logged(tiny_folder):
    """Events of an engine, the engine and its completions."""
    events = []
    engine = logged_engine(tiny_folder, events.append)
    completions = complete(engine, PROMPTS, [params(n) for n in (5, 3, 6)])
    return events, engine, completions


def test_the_log_is_what_the_runner_recorded(logged):
    events, engine, _ = logged
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    assert [launch.record for launch in launches] == list(engine.runner.records)
    assert any(launch.record.is_mixed for launch in launches)
    assert sum(launch.record.num_readbacks for launch in launches) == engine.stats().num_readbacks
    assert launches[-1].num_compilations == engine.stats().num_compilations


def test_an_engine_that_is_built_anew_goes_on_with_the_log(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append).rebuilt()
    complete(engine, PROMPTS[:1], [params(2)])
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    assert [launch.record for launch in launches] == list(engine.runner.records)
    assert launches


def test_what_comes_after_the_end_is_dropped(tmp_path):
    path = tmp_path / "log"
    event = FaultEvent(0.0, 0, 0, True, "lost")
    with recording(path) as observer:
        observer._sink(event)
    for _ in range(300):
        observer._sink(replace(event, message="late"))
    assert read_launch_log(path).events == (event,)


def test_without_an_event_there_is_no_file(tmp_path, caplog):
    path = tmp_path / "log.jsonl"
    for _ in range(2):
        with pytest.raises(LoopedError, match="no model"), recording(path):
            raise LoopedError("no model")
        assert not path.exists()
    assert caplog.text.count("no request came, so there is no launch log") == 2
    write_launch_log(path, [], {})
    assert read_launch_log(path).events == (), "a whole log may be an empty one"


def test_moments_are_in_order_and_every_launch_is_awaited_after_the_next_one_is_out(logged):
    launches = [event for event in logged[0] if isinstance(event, LaunchEvent)]
    for event in launches:
        moments = [
            event.scheduled,
            event.started,
            event.dispatched,
            event.awaited,
            event.ended,
            event.visible,
        ]
        assert moments == sorted(moments)
        assert event.host_wait > 0
    for before, after in pairwise(launches):
        assert before.dispatched <= after.scheduled
        assert before.visible <= after.awaited
        # The last launch is dispatched when nothing else can be.
        assert after.dispatched <= before.awaited or before.launch_index == after.record.index
    num_later = [event.launch_index - event.record.index - 1 for event in launches]
    assert set(num_later) == {0, 1}
    assert num_later[-1] == 0


def test_heads_are_logged_with_what_became_of_their_rows(logged):
    launches = [event for event in logged[0] if isinstance(event, LaunchEvent)]
    for event in launches:
        record = event.record
        statuses = [item.status for item in record.items if item.status is not None]
        assert statuses == [RowStatus.LEFT] * len(event.tokens)
        assert (record.head is not None) == bool(event.tokens) == bool(record.num_readbacks)
        if record.head is not None:
            assert record.head.num_rows == len(event.tokens) <= record.head.bucket
    # All blocks are claimed at admission, so every request is written once.
    assert [launch.record.num_writes for launch in launches] == [3, *[0] * (len(launches) - 1)]


def test_every_token_and_request_is_logged(logged):
    events, _, completions = logged
    timeline = Timeline(events)
    for completion in completions:
        name = completion.request_id, 0
        tokens = [visible.token for visible in timeline.tokens[name]]
        assert tuple(token.token_id for token in tokens) == completion.token_ids
        assert tuple(token.exit_depth for token in tokens) == completion.exit_depths
        assert [token.output_index for token in tokens] == list(range(len(tokens)))
        assert timeline.requests[name].num_prompt_tokens == len(completion.prompt_token_ids)
        assert timeline.ends[name].num_tokens == len(completion.token_ids)
        assert timeline.ends[name].reason is FinishReason.LENGTH


def test_slots_and_queues_are_those_of_the_requests(logged):
    launches = [event for event in logged[0] if isinstance(event, LaunchEvent)]
    for launch in launches:
        slots = [item.slot for item in launch.record.items]
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < SMALL.max_num_seqs for slot in slots)
    first = launches[0].queues
    # The two short prompts ran every depth at once, the long one is at its second chunk.
    assert (first.waiting, first.prefill, first.recurrent) == (0, 1, 2)
    last = launches[-1].queues
    assert (last.waiting, last.prefill, last.recurrent) == (0, 0, 0)


def test_waits_for_the_device_make_every_launch_end_when_it_has_run(tiny_folder):
    waited, events = [], []
    observer = LaunchRecorder(events.append, waits_for_device=True)
    engine = make_engine(tiny_folder, observer=observer)
    wait = engine.runner.wait
    engine.runner.wait = lambda launched: waited.append((launched.index, wait(launched)))
    complete(engine, PROMPTS, [params(2)] * 3)
    num_launches = sum(engine.stats().num_launches.values())
    # Once when it was dispatched, and again, for nothing, when it is applied and not read.
    assert {index for index, _ in waited} == set(range(num_launches))
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    for before, after in pairwise(launches):
        assert before.awaited <= before.ended <= after.scheduled


def all_kinds_of_events(logged):
    """What an engine logged, and an abort, a launch of a row that had ended, and a fault."""
    abort = AbortEvent(9.0, "x", 1, 12, 11, Stage.RECURRENT, 3, 1)
    last = next(event for event in reversed(logged[0]) if isinstance(event, LaunchEvent))
    ended = ItemRecord("x", 1, ItemKind.DECODE, None, 30, 1, 2)
    launch = replace(last, record=replace(last.record, items=(*last.record.items, ended)))
    return [*logged[0], abort, launch, FaultEvent(9.5, 12, 11, True, "lost")]


def test_the_file_gives_back_every_event(logged, tmp_path):
    for name in ("log.jsonl", "log.jsonl.gz"):
        writer = LaunchLogWriter(tmp_path / name, {"arm": "A2"})
        for event in all_kinds_of_events(logged):
            writer.write(event)
        writer.close()
        log = read_launch_log(tmp_path / name)
        assert log.events == tuple(all_kinds_of_events(logged))
        assert log.meta == {"arm": "A2"}
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert (
        gzip.decompress((tmp_path / "log.jsonl.gz").read_bytes()).decode().splitlines()[1:]
        == (lines[1:])
    )
    header = json.loads(lines[0])
    assert (header["type"], header["schema"]) == ("header", 3)
    kinds = [json.loads(line)["type"] for line in lines]
    assert kinds.count("launch") == 1 + sum(isinstance(one, LaunchEvent) for one in logged[0])
    launch = json.loads(lines[kinds.index("launch")])
    assert launch["num_rows"] + launch["num_padded_rows"] == launch["bucket"]
    assert len(launch["items"][0]) == len(header["item_fields"])


def test_a_log_is_never_overwritten(tmp_path):
    (tmp_path / "log.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="exists"), recording(tmp_path / "log.jsonl"):
        pass
    with pytest.raises(UsageError, match="is not a folder"), recording(tmp_path / "no" / "log"):
        pass
    assert (tmp_path / "log.jsonl").read_text() == "mine"


def damaged(tmp_path, logged, change):
    path = tmp_path / "log.jsonl"
    writer = LaunchLogWriter(path)
    for event in logged[0]:
        writer.write(event)
    writer.close()
    path.write_text(change(path.read_text()))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "not a launch log"),
        (lambda text: '{"a": 1}\n', "not a launch log"),
        (
            lambda text: text.replace('"schema":3', '"schema":2', 1),
            r"schema is 2, in which the LM head is a launch of its own \(kind coda\), and this "
            r"version of looped reads 3; make the log again, or read it with the version .* \d",
        ),
        (
            lambda text: text.replace('"schema":3', '"schema":4', 1),
            "schema is 4, and this version of looped reads 3",
        ),
        (lambda text: text.replace('"kind":"recurrent"', '"kind":"coda"', 1), "damaged: KeyError"),
        (lambda text: text.replace('"left"', '"gone"', 1), "damaged: KeyError"),
        (lambda text: text.replace('"type":"end"', '"type":"fin"', 1), "damaged: ValueError"),
        (lambda text: text.replace('"queues":[', '"queues":[7,', 1), "damaged: TypeError"),
        (lambda text: text.replace('{"type":"launch"', '{type":"launch"', 1), "is not JSON"),
    ],
)
def test_a_damaged_log_is_refused_with_the_line(tmp_path, logged, change, message):
    with pytest.raises(LoopedError, match=message):
        read_launch_log(damaged(tmp_path, logged, change))


def test_a_missing_log_is_one_line(tmp_path):
    with pytest.raises(LoopedError, match="no such file"):
        read_launch_log(tmp_path / "log.jsonl")


def test_a_cut_last_line_is_left_out_with_a_warning(tmp_path, logged, caplog):
    log = read_launch_log(damaged(tmp_path, logged, lambda text: text[:-9]))
    assert log.events == tuple(logged[0][:-1])
    assert "the last line is cut off" in caplog.text


def test_a_full_disk_ends_the_log_and_not_the_requests(tmp_path, logged, caplog):
    path = Path("/dev/full")
    if not path.exists():
        pytest.skip("no /dev/full here")
    link = tmp_path / "log.jsonl"
    writer = LaunchLogWriter(link)
    link.symlink_to(path)
    writer._file = path.open("w")
    for event in logged[0] * 20:
        writer.write(event)
    writer.close()
    assert writer.failure is not None
    assert caplog.text.count("ends here") == 1


def test_an_engine_without_a_log_reads_no_clock():
    folder = Path(package.__file__).parent
    readers = set()
    rooms = (folder, *(folder / name for name in ("device", "engine", "programs", "text")))
    for path in (path for room in rooms for path in room.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                readers |= {path.name for alias in node.names if alias.name == "time"}
            elif isinstance(node, ast.ImportFrom) and node.module == "time":
                readers.add(path.name)
    assert readers == {"observer.py"}
    assert LaunchObserver().waits_for_device is False


def test_tokens_are_the_same_with_a_log(tiny_folder, logged):
    plain = complete(make_engine(tiny_folder), PROMPTS, [params(n) for n in (5, 3, 6)])
    assert [done.token_ids for done in plain] == [done.token_ids for done in logged[2]]


def test_a_line_costs_a_bounded_time_and_space(tmp_path, logged):
    """Sixteen items a launch: well below the 230 us of host time that such a launch takes."""
    launch = next(event for event in logged[0] if isinstance(event, LaunchEvent))
    items = (launch.record.items * 16)[:16]
    event = replace(launch, record=replace(launch.record, items=items))
    path = tmp_path / "log.jsonl"
    writer = LaunchLogWriter(path)
    start = time.thread_time()
    for _ in range(2000):
        writer.write(event)
    writer.close()
    # Measured 30 to 50 us (experiments/launch_log_cost.py); a busy machine is allowed three times.
    assert (time.thread_time() - start) / 2000 < 150e-6
    assert path.stat().st_size / 2000 < 1500


def test_generate_writes_a_log(tiny_folder, tmp_path):
    log = tmp_path / "log.jsonl"
    options = ("--model", tiny_folder, "--max-tokens", 3, "--ignore-eos", *SMALL_FLAGS)
    plain = looped("generate", "hello", *options).stdout
    done = looped("generate", "hello", *options, "--launch-log", log, "--launch-log-waits")
    assert done.stdout == plain
    timeline = Timeline(read_launch_log(log).events)
    assert len(timeline.tokens["0", 0]) == 3
    again = looped("generate", "hello", *options, "--launch-log", log, check=False)
    assert again.returncode == 2
    assert "exists; choose another name" in again.stderr
    alone = looped("generate", "hello", *options, "--launch-log-waits", check=False)
    assert (alone.returncode, "add --launch-log FILE" in alone.stderr) == (2, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--record-gates", "gates.txt"), "must end in .npz"),
        (("--record-trace", "no/trace.json"), "is not a folder"),
        (("--record-trace", "./log.jsonl"), "is named for two recordings"),
        (("--prompt-ids", "1,2", "--prompt-ids", "1,99999"), "expected token ids in 0.."),
    ],
)
def test_a_run_that_is_refused_leaves_no_recording(tiny_folder, tmp_path, more, message):
    folder = tmp_path.resolve()
    recordings = {
        "--launch-log": "log.jsonl",
        "--record-trace": "trace.json",
        "--record-gates": "gates.npz",
    } | {flag: name for flag, name in pairwise(more) if flag.startswith("--record")}
    options = [part for flag, name in recordings.items() for part in (flag, folder / name)]
    if "--prompt-ids" in more:
        options += more
    done = looped("generate", "hello", "--model", tiny_folder, *options, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(folder.iterdir()) == []
