"""Pictures are written, for logs of every arm, and show what the log holds."""

import struct
import sys
from dataclasses import replace

import pytest
from command_line import looped
from stub_target import play

from looped.engine.records import ItemRecord, LaunchRecord
from looped.plots.figures import HEAD_COLOUR, PADDING_COLOUR
from looped.plots.gantt import bars_of, injection_times, parts_of, planes_of, shown_launches
from looped.plots.occupancy import rows_by_pass, rows_of_head
from looped.record.launch_log import LaunchLogWriter
from looped.sched import ItemKind, LaunchKind, RowStatus


@pytest.fixture(scope="module")
def runs():
    return {name: play(name) for name in ("D0", "P0", "A0", "A2")}


def write_log(path, run):
    writer = LaunchLogWriter(path, run.meta())
    for event in run.events:
        writer.write(event)
    writer.close()
    return path


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data[-8:-4] == b"IEND"
    return struct.unpack(">II", data[16:24])


def test_every_picture_is_written(runs, tmp_path):
    logs = [write_log(tmp_path / f"{name}.jsonl.gz", run) for name, run in runs.items()]
    out = tmp_path / "pictures"
    said = looped("plot", *logs, "--out", out).stdout.split()
    expected = {f"{name}-{kind}.png" for name in runs for kind in ("gantt", "occupancy", "itl")}
    assert {path.name for path in out.iterdir()} == expected | {"itl-by-arm.png"}
    assert sorted(said) == sorted(str(path) for path in out.iterdir())
    for path in out.iterdir():
        width, height = png_size(path)
        assert width > 500
        assert height > 300


def test_prompt_items_of_one_slot_share_its_bar():
    chunks = [ItemRecord("a", 0, ItemKind.PROMPT, depth, 8 - 4 * depth, 4, 3) for depth in (2, 1)]
    other = ItemRecord("b", 0, ItemKind.DECODE, 0, 9, 1, 5)
    record = LaunchRecord(
        index=0,
        kind=LaunchKind.RECURRENT,
        bucket=16,
        num_rows=9,
        num_passes=1,
        num_calls=1,
        num_writes=0,
        num_readbacks=0,
        head=None,
        items=(other, *chunks),
    )
    bars = {(item.slot, item.depth): (low, low + height) for item, low, height in bars_of(record)}
    assert bars[5, 0] == pytest.approx((4.6, 5.4))
    assert bars[3, 2] == pytest.approx((2.6, 3.0))
    assert bars[3, 1] == pytest.approx((3.0, 3.4))


def test_files_are_not_replaced_unasked(runs, tmp_path):
    log = write_log(tmp_path / "a.jsonl", runs["D0"])
    (tmp_path / "a-itl.png").write_text("mine")
    done = looped("plot", log, "--out", tmp_path, check=False)
    assert (done.returncode, "pass --overwrite" in done.stderr) == (2, True)
    assert (tmp_path / "a-itl.png").read_text() == "mine"
    looped("plot", log, "--out", tmp_path, "--overwrite", "--seconds", "0:50")
    png_size(tmp_path / "a-itl.png")


@pytest.mark.parametrize("seconds", ["1", "a:b", "3:2"])
def test_a_span_that_is_none_is_refused(runs, tmp_path, seconds):
    log = write_log(tmp_path / "a.jsonl", runs["D0"])
    done = looped("plot", log, "--out", tmp_path, "--seconds", seconds, check=False)
    assert done.returncode == 2
    assert "--seconds" in done.stderr


def test_a_log_without_launches_is_said_to_be_empty(tmp_path):
    writer = LaunchLogWriter(tmp_path / "a.jsonl")
    writer.flush()
    writer.close()
    done = looped("plot", tmp_path / "a.jsonl", "--out", tmp_path)
    assert "holds no launch" in done.stderr
    assert done.stdout == ""


def test_without_the_library_the_user_is_told_what_to_install(runs, tmp_path, monkeypatch):
    log = write_log(tmp_path / "a.jsonl", runs["D0"])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("looped.plots.figures.find_spec", lambda name: None)
    done = looped("plot", log, "--out", tmp_path, check=False)
    assert done.returncode == 2
    assert "pip install 'looped[plot]'" in done.stderr


def test_the_chart_shows_the_stretch_around_the_first_injection(runs):
    timeline = runs["A2"].timeline
    times = injection_times(timeline)
    assert times == [timeline.requests[f"prompt-{i}", 0].time for i in range(2)]
    shown = shown_launches(timeline, None)
    assert shown[0].started < times[0] < shown[-1].started
    assert shown_launches(timeline, (0.0, 1e9)) == timeline.launches
    assert injection_times(runs["D0"].timeline) == []


def test_rows_of_a_pass_go_by_kind_and_depth(runs):
    launches = runs["A0"].timeline.launches
    whole = next(one for one in launches if one.record.num_passes == 4)
    assert [dict(+rows) for rows in rows_by_pass(whole)] == [
        {f"prompt, depth {depth}": whole.record.num_rows} for depth in range(4)
    ]
    with_head = next(one for one in launches if one.record.head)
    assert dict(+rows_of_head(with_head)) == {"LM head": with_head.record.head.num_rows}
    without = next(one for one in launches if not one.record.head)
    assert not rows_of_head(without)
    assert planes_of(runs["A0"].timeline) == 4
    assert whole.record.items[0].kind is ItemKind.PROMPT


def test_a_row_that_the_head_looked_at_ends_in_its_colour(runs):
    launches = runs["A2"].timeline.launches
    record = next(one.record for one in launches if one.record.head and one.record.is_mixed)
    (decode, *_), prompt = record.items[:-1], record.items[-1]
    assert decode.status is RowStatus.LEFT
    (start, width, _), (head_start, head_width, colour) = parts_of(record, decode, 4)
    assert (start, colour) == (0, HEAD_COLOUR)
    assert head_start == width
    assert head_start + head_width == pytest.approx(1)
    assert [part[:2] for part in parts_of(record, prompt, 4)] == [(0, width)]
    ended = replace(decode, depth=None, status=None)
    assert [colour for *_, colour in parts_of(record, ended, 4)] == [PADDING_COLOUR]
    launch = replace(launches[0], record=replace(record, items=(ended, prompt)))
    assert rows_by_pass(launch)[0]["padding"] == 1
