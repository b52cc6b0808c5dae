"""The whole benchmark on the tiny checkpoint: real engines, two processes, a valid result."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import looped

from looped.bench.arms import ARMS
from looped.bench.interference.benchmark import read_benchmark, rounds_of
from looped.errors import LoopedError, UsageError

SMALL_RUN = (
    "--decoders", 2, "--prompt-tokens", 12, "--budget", 16, "--chunk", 8, "--num-prompts", 1,
    "--pairs", 5, "--first-injection", 4, "--injection-interval", 2, "--output-tokens", 8,
    "--no-plots",
)  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory, tiny_folder):
    """A folder of results, and what the command printed."""
    folder = tmp_path_factory.mktemp("interference") / "results"
    done = looped(
        "bench", "interference", "--model", tiny_folder, "--out", folder, *SMALL_RUN,
        "--dtype", "float32", "--threshold", 0.5, "--bystander-tokens", 3,
        "--layers", "unrolled", "--profile", folder.parent / "profile", check=False,
    )  # fmt: skip
    return folder, done


@pytest.mark.slow
def test_a_real_run_is_valid_and_mixes(measured):
    folder, done = measured
    assert done.returncode == 0, done.stderr
    (result,) = read_benchmark(folder).results
    assert result.comparison.violations == []
    assert result.comparison.num_pairs == 5
    assert result.comparison.arms.keys() == ARMS.keys()
    assert result.comparison.arms["A2"].metrics["mixed_launches"].median > 0
    assert "INVALID" not in done.stdout
    assert done.stdout == (folder / "result.md").read_text()


@pytest.mark.slow
def test_exits_are_recorded_once_and_replayed(measured):
    folder, _ = measured
    (result,) = read_benchmark(folder).results
    (traces,) = folder.glob("*/traces.json")
    depths = [loops for trace in json.loads(traces.read_text()) for loops in trace[1:]]
    assert min(depths) < 4
    for run in result.runs:
        assert [list(trace) for trace in run.workload.traces] == json.loads(traces.read_text())
        assert run.options.exits == "replay"
        # Replayed exits are never read: only LM heads are.
        assert all(
            not launch.record.num_readbacks
            for launch in run.timeline.launches
            if launch.record.kind.runs_layers
        )


@pytest.mark.slow
def test_every_arm_is_profiled_apart_from_what_is_measured(measured):
    folder, _ = measured
    (result,) = read_benchmark(folder).results
    (place,) = (folder.parent / "profile").iterdir()
    assert place.name == result.point.name
    assert {path.name for path in place.iterdir()} == ARMS.keys()
    assert all(list(path.rglob("*.xplane.pb")) for path in place.iterdir())


@pytest.mark.slow
def test_the_result_can_be_worked_out_again(measured):
    folder, done = measured
    again = looped("bench", "report", folder, "--no-plots")
    assert again.stdout == done.stdout
    values = json.loads(looped("bench", "report", folder, "--no-plots", "--json").stdout)
    assert values["is_valid"] is True
    assert values == json.loads((folder / "result.json").read_text())
    (point,) = values["points"]
    assert set(point["ratios"]) >= {"A2/A0", "A2/A1"}
    assert point["ratios"]["A2/A0"]["output_tokens_per_second"]["count"] == 5
    assert values["devices"]
    assert values["command"].startswith("looped bench interference")


@pytest.mark.slow
def test_pictures_of_a_benchmark(measured, tmp_path):
    folder = shutil.copytree(measured[0], tmp_path / "copy")
    looped("bench", "report", folder)
    names = {path.name for path in folder.glob("*/*.png")}
    assert "itl-by-arm.png" in names
    assert {f"{name}-gantt.png" for name in ARMS} <= names


@pytest.mark.slow
def test_a_sweep_that_was_stopped_has_the_points_that_are_done(measured, tmp_path):
    folder = shutil.copytree(measured[0], tmp_path / "copy")
    description = json.loads((folder / "benchmark.json").read_text())
    (done,) = description["points"]
    undone = done | {"budget": done["budget"] + 1}
    (folder / "benchmark.json").write_text(json.dumps(description | {"points": [done, undone]}))
    again = looped("bench", "report", folder, "--no-plots")
    assert "expected 25 launch logs, got 0; the benchmark was stopped" in again.stderr
    result = json.loads((folder / "result.json").read_text())
    assert result["is_complete"] is False
    assert len(result["points"]) == 1
    assert "INCOMPLETE" in (folder / "result.md").read_text()


def refuse_another_kind(folder):
    path = folder / "benchmark.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"benchmark": "throughput"}))
    with pytest.raises(LoopedError, match="'interference' of schema 1, got benchmark 'throughput'"):
        read_benchmark(folder)
    path.write_text(before)


@pytest.mark.slow
def test_a_profile_that_fails_leaves_the_result(measured, tmp_path, monkeypatch, tiny_folder):
    folder, done = measured

    def fail(*arguments):
        raise LoopedError("no profile")

    monkeypatch.setattr("looped.bench.interference.benchmark.profile_point", fail)
    monkeypatch.setattr(
        "looped.bench.interference.benchmark.run_benchmark",
        lambda out, *others: [
            shutil.copytree(folder, out) and read_benchmark(out).results[0].point
        ],
    )
    out = tmp_path / "out"
    again = looped(
        "bench", "interference", "--model", tiny_folder, "--out", out, *SMALL_RUN,
        "--profile", tmp_path / "profile", check=False,
    )  # fmt: skip
    assert (again.returncode, "no profile" in again.stderr) == (1, True)
    assert again.stdout == done.stdout == (out / "result.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_leaves_no_process_behind(tiny_folder, tmp_path, number):
    out = tmp_path / "results"
    command = [sys.executable, "-P", "-m", "looped", "bench", "interference", *SMALL_RUN]
    options = ["--model", tiny_folder, "--out", out]
    with subprocess.Popen([*map(str, [*command, *options])], stderr=subprocess.PIPE) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not (workers := workers_of(children)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(30) != 0
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    assert (out / "benchmark.json").exists()
    assert not (out / "result.json").exists()


def workers_of(children):
    """Processes that run the benchmark's worker."""
    return [
        name
        for name in children.read_text().split()
        if b"looped.bench.interference.worker" in Path(f"/proc/{name}/cmdline").read_bytes()
    ]


@pytest.mark.slow
def test_a_broken_rule_makes_the_command_fail_and_is_named(measured, tmp_path):
    folder = shutil.copytree(measured[0], tmp_path / "copy")
    for log in folder.glob("*/process1-*.jsonl.gz"):
        log.unlink()
    with pytest.raises(LoopedError, match="expected 25 launch logs, got 15; the benchmark was"):
        read_benchmark(folder)
    refuse_another_kind(folder)
    description = json.loads((folder / "benchmark.json").read_text())
    description["rounds"] = [3]
    (folder / "benchmark.json").write_text(json.dumps(description))
    done = looped("bench", "report", folder, "--no-plots", check=False)
    assert done.returncode == 1
    assert "the benchmark is invalid, 2 broken rules: enough_pairs" in done.stderr
    assert "**INVALID**: 2 broken rules." in done.stdout


def test_a_benchmark_needs_five_pairs_in_two_processes():
    assert rounds_of(6, 2) == [3, 3]
    assert rounds_of(7, 3) == [3, 2, 2]
    for pairs, processes in ((4, 2), (6, 1)):
        with pytest.raises(UsageError, match="at least 5 pairs in 2 processes"):
            rounds_of(pairs, processes)


@pytest.mark.slow
def test_mistakes_are_found_before_anything_is_made(tiny_folder, tmp_path, measured):
    def refused(*options):
        done = looped(
            "bench", "interference", "--model", tiny_folder, "--out", tmp_path / "new",
            "--no-plots", *options, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert not (tmp_path / "new").exists()
        return done.stderr

    assert "try --budget 137" in refused("--chunk", 128, "--budget", 128)
    assert "at least 5 pairs" in refused("--pairs", 3)
    assert "points of a sweep must differ" in refused("--budget", 256, "--budget", 256)
    assert "cannot be read" in refused("--exit-trace", tmp_path / "none.json")
    done = looped(
        "bench", "interference", "--model", tiny_folder, "--out", measured[0], check=False
    )
    assert "exists; choose another name" in done.stderr


def test_a_process_that_fails_ends_the_benchmark(tmp_path, tiny_folder):
    model = shutil.copytree(tiny_folder, tmp_path / "model")
    (model / "model.safetensors").unlink()
    done = looped(
        "bench", "interference", "--model", model, "--out", tmp_path / "out", *SMALL_RUN,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "failed with exit code 1" in done.stderr
