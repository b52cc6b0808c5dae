"""One policy for the results of every benchmark: refuse early, keep what was measured, say so."""

import json
from pathlib import Path

import pytest
from command_line import looped

from looped.errors import UsageError
from looped.measure.results_folder import (
    INCOMPLETE,
    check_folders,
    check_writable,
    make_folder,
    write_results,
)

MODEL = ("--model", "none")


@pytest.mark.parametrize(
    "command",
    [
        ("interference", *MODEL, "--no-plots"),
        ("throughput", *MODEL),
        ("serve", "--url", "http://127.0.0.1:9", "--no-plots"),
        ("replay", *MODEL, "--no-plots"),
    ],
    ids=lambda command: command[0],
)
def test_a_folder_that_exists_is_refused_before_a_model_or_a_server_is_looked_for(
    tmp_path, command
):
    done = looped("bench", *command, "--out", tmp_path, check=False)
    assert done.returncode == 2
    assert "exists; choose another name for the results" in done.stderr


@pytest.mark.parametrize("command", ["interference", "throughput", "replay"])
def test_a_profile_among_the_results_is_refused(tmp_path, command):
    out = tmp_path / "out"
    options = () if command == "throughput" else ("--no-plots",)
    for folders in ((out, out / "profile"), (out / "results", out)):
        pair = ("--out", folders[0], "--profile", folders[1])
        done = looped("bench", command, *MODEL, *pair, *options, check=False)
        assert (done.returncode, "need folders apart" in done.stderr) == (2, True)
    assert not out.exists()


def test_a_broken_link_is_a_name_that_is_taken(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="choose another name"):
        check_folders(tmp_path / "link")
    check_folders(None)
    check_folders(None, tmp_path)


def test_a_place_is_tried_and_left_as_it_was(tmp_path):
    for folder in (tmp_path, tmp_path / "deep" / "results"):
        check_writable(folder)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match=r"^/proc cannot be written to \(/proc: "):
        check_writable(Path("/proc"))
    with pytest.raises(UsageError, match=r"^/proc/none/x cannot be made \(/proc: "):
        check_writable(Path("/proc/none/x"))


def test_what_is_unfinished_says_so_until_it_is_finished(tmp_path):
    folder = tmp_path / "deep" / "results"
    make_folder(folder, {"benchmark": "serve", "schema": 1})
    assert [path.name for path in folder.iterdir()] == ["benchmark.json"]
    write_results(folder, {"is_complete": False, "runs": 1}, "# Page\n")
    assert (folder / "result.md").read_text() == INCOMPLETE + "# Page\n"
    write_results(folder, {"is_complete": True, "runs": 2}, "# Page\n")
    assert (folder / "result.md").read_text() == "# Page\n"
    assert json.loads((folder / "result.json").read_text())["runs"] == 2
    assert {path.name for path in folder.iterdir()} == {
        "benchmark.json", "result.json", "result.md",
    }  # fmt: skip
    with pytest.raises(UsageError, match="exists"):
        make_folder(folder, {})
