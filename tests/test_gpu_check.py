"""The script for a GPU, where there is none: its exit code, a rehearsal, and what it reports."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from stub_target import WORKLOAD, play

FOLDER = Path(__file__).parents[1] / "experiments" / "gpu_check"


def gpu_check(*arguments, **options):
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-P", str(FOLDER), *map(str, arguments)],
        capture_output=True, text=True, check=False, env=environment, **options,
    )  # fmt: skip


def module_of(name):
    specification = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def report():
    return module_of("report")


@pytest.fixture
def check_interference(monkeypatch):
    """The check, with its neighbours in sight for as long as it needs them."""
    monkeypatch.syspath_prepend(FOLDER)
    helpers = ("report", "engines_here")
    yield module_of("check_interference")
    for name in helpers:
        sys.modules.pop(name, None)


def test_without_a_gpu_it_says_so_and_exits_3(tmp_path):
    done = gpu_check("--out", tmp_path)
    assert done.returncode == 3, done.stderr
    assert "no NVIDIA GPU" in done.stderr
    assert not (tmp_path / "gpu-check.md").exists(), "nothing was measured, nothing is reported"


@pytest.mark.slow
def test_a_rehearsal_runs_a_stage_and_marks_its_figures(tmp_path):
    done = gpu_check("--rehearse", "--stages", "transfers", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "gpu-check.json").read_text())
    (check,) = results["stages"]["transfers"]["results"]
    assert check["ok"]
    assert check["mixed launches"] > 0
    assert "no figure below was measured on a GPU" in (tmp_path / "gpu-check.md").read_text()


@pytest.mark.slow
def test_a_rehearsal_runs_every_stage(tmp_path):
    done = gpu_check("--rehearse", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "gpu-check.json").read_text())
    assert {stage["status"] for stage in results["stages"].values()} == {"passed"}
    assert len(results["stages"]) == 7
    idle = [check["name"] for check in results["stages"]["idle"]["results"]]
    assert len(idle) == len(set(idle)) == 2 * 2 * 3
    assert sum("command buffers off" in name for name in idle) == 6


@pytest.fixture
def check_idle(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield module_of("check_idle")
    sys.modules.pop("report", None)


def test_idle_is_what_no_operation_covers(check_idle):
    # Two overlap, one lies inside another; a gap of 5 us and one of 1 ms are left.
    busy = [(1.000005, 1.001), (0.999, 1.0), (0.9995, 0.9999), (1.0005, 1.002), (1.003, 1.004)]
    total, idle, between = check_idle.idle_of(busy)
    assert total == pytest.approx(5e-3)
    assert idle == pytest.approx(1.005e-3)
    assert between == pytest.approx(1e-3)
    assert check_idle.idle_of([]) == (0.0, 0.0, 0.0)


def test_a_process_that_measures_is_told_what_to_do_with_command_buffers(check_idle, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *call, **options: started.append(options))
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=1")
    for buffers in check_idle.BUFFERS:
        check_idle.child_of(buffers, is_rehearsal=False)
    assert [options["env"]["XLA_FLAGS"] for options in started] == [
        "--xla_gpu_autotune_level=1",
        "--xla_gpu_autotune_level=1 --xla_gpu_enable_command_buffer=",
    ]


def test_every_case_of_idle_time_is_planned_and_one_that_is_not_measured_fails(
    check_idle, report, tmp_path, monkeypatch
):
    """The process with command buffers off ends after two of its lines."""
    cases = check_idle.cases(is_rehearsal=False)
    assert len(cases) == 3 * 2 * 3

    def child_of(buffers, *, is_rehearsal):
        count = len(cases) if buffers == "on" else 2
        code = f'for _ in range({count}): print(\'{{"ok": true, "idle, share": 0.25}}\')'
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(check_idle, "child_of", child_of)
    check_idle.run(report.Recorder(tmp_path / "idle.json"), is_rehearsal=False)
    stage = json.loads((tmp_path / "idle.json").read_text())
    assert [result["name"] for result in stage["results"]] == stage["planned"]
    assert [result["ok"] for result in stage["results"]] == [True] * 20 + [False] * 16
    assert stage["results"][0]["idle, share"] == 0.25
    assert "has ended" in stage["results"][-1]["error"]


class StubBench:
    """Arms on the stub; those that are named break a rule."""

    point = SimpleNamespace(workload=WORKLOAD)

    def __init__(self, *invalid):
        self._invalid = invalid

    def play(self, arm, workload, place):
        run = play(arm.name, workload=workload)
        return replace(run, num_backend_compilations=int(arm.name in self._invalid))


def test_an_arm_is_not_compared_with_decoders_alone_that_are_not_there(check_interference):
    runs = {}
    is_good, values = check_interference.play(StubBench("D0"), "D0", runs)
    assert (is_good, "no_compilation" in values["broken rules"]) == (False, True)
    is_good, values = check_interference.play(StubBench("D0"), "A0", runs)
    assert (is_good, values["not compared"]) == (False, "decoders alone: no valid run")
    for arm in ("D0", "A0"):
        is_good, values = check_interference.play(StubBench(), arm, runs)
        assert is_good
    assert values["stall_factor, x"] > 1


def test_an_unknown_stage_is_refused_with_those_there_are(tmp_path):
    done = gpu_check("--stages", "kernels,speed", "--out", tmp_path)
    assert done.returncode == 2
    assert "expected stages of kernels, goldens," in done.stderr
    assert "got speed" in done.stderr


def test_a_failing_check_does_not_end_its_stage_and_what_was_cut_is_named(tmp_path, report):
    recorder = report.Recorder(tmp_path / "stage.json")
    recorder.plan(["good", "broken", "never reached"])
    recorder.check("good", lambda value: (True, {"value": value}), 7)
    recorder.check("broken", lambda: 1 / 0)
    stage = json.loads((tmp_path / "stage.json").read_text())
    assert [result["ok"] for result in stage["results"]] == [True, False]
    assert stage["results"][0]["value"] == 7
    assert "ZeroDivisionError" in stage["results"][1]["error"]
    stages = {"kernels": {"status": "cut", "seconds": 90.0, "error": "its 90 s were over", **stage}}
    text = report.markdown({"date": "today", "is_rehearsal": False, "stages": stages})
    assert "cut: never reached" in text
    assert "| broken | NO |" in text
    assert "its 90 s were over" in text
