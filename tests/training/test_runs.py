"""Whole runs: a loss that falls, models that the engine loads, kills that leave no trace."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from checkpoints import assert_same_bits, read_checkpoint
from command_line import looped
from engines import SMALL_SIZES
from training_runs import curve

from looped.demo.answers import answers
from looped.demo.examples import demo_source
from looped.demo.problems import held_out
from looped.llm import LLM
from looped.sched import ExitOptions
from looped.training.batches import Batches, token_shares
from looped.training.config import ShapeConfig
from looped.training.forward import loop_losses, loop_states
from looped.training.initial import initial_model

TINY = ["--hidden-size", 32, "--num-heads", 2, "--head-dim", 16, "--intermediate-size", 64]
SHORT = ["--batch-size", 4, "--sequence-length", 112, "--warmup-steps", 2]
STEPS = 12


def pretrain_arguments(out, *options):
    """Of a short run, in which most tokens of some rows leave from the first step on."""
    command = ["train", "pretrain", "--task", "demo", "--out", out, *TINY, *SHORT]
    return [*command, "--exit-share", 0.5, "--exit-loss", 9, *options]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing has stopped."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    looped(*pretrain_arguments(out, "--steps", STEPS, "--checkpoint-interval", 4))
    return out


def test_the_loss_falls_and_every_step_has_a_line(whole):
    metrics = curve(whole)
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.5
    assert len(metrics[0]["loop_losses"]) == len(metrics[0]["exit_shares"]) == 4
    assert (whole / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_each_loops_loss_is_of_rows_without_exits(whole):
    source = demo_source()
    shape = ShapeConfig(hidden_size=32, num_heads=2, head_dim=16, intermediate_size=64)
    model = initial_model(shape.model_config(source.vocab_size), 0)
    batch = Batches(source.draw, batch_size=4, sequence_length=112, seed=0).at(0)
    counts = np.repeat([True, False, True, False], 112)
    losses = loop_losses(model, loop_states(model, batch), batch) @ token_shares(batch, counts)
    np.testing.assert_allclose(curve(whole)[0]["loop_losses"], losses, rtol=1e-4)


def test_the_last_two_checkpoints_are_kept(whole):
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["12", "8"]


@pytest.mark.long
def test_the_exported_model_runs_in_the_engine(whole):
    llm = LLM(str(whole / "model"), **SMALL_SIZES, deterministic=True)
    given = answers(llm, held_out(4), ExitOptions(threshold=0.5, min_loops=1))
    for answer in given:
        depths = answer.completion.exit_depths
        assert depths[0] == 4
        assert set(depths) <= {1, 2, 3, 4}
        assert answer.decode_depths == depths[1:]


def wait_for_checkpoint(process, out, step):
    deadline = time.monotonic() + 240
    while not (out / "checkpoints" / str(step)).is_dir():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_curve_and_the_same_weights(whole, tmp_path):
    out = tmp_path / "killed"
    arguments = pretrain_arguments(out, "--steps", STEPS, "--checkpoint-interval", 4)
    process = subprocess.Popen(
        [sys.executable, "-m", "looped", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        wait_for_checkpoint(process, out, 4)
        os.kill(process.pid, signal.SIGKILL)
    assert not (out / "model").exists()
    # What a run leaves that dies while it writes a line, past its last checkpoint.
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')
    looped(*arguments, "--resume")
    assert curve(out) == curve(whole)
    assert_same_bits(read_checkpoint(out / "model"), read_checkpoint(whole / "model"))


def test_a_folder_with_a_run_is_neither_overwritten_nor_resumed_with_other_options(whole):
    options = ["--steps", STEPS, "--checkpoint-interval", 4]
    done = looped(*pretrain_arguments(whole, *options), check=False)
    assert done.returncode == 2
    assert "pass --resume" in done.stderr
    done = looped(*pretrain_arguments(whole, *options, "--seed", 5, "--resume"), check=False)
    assert done.returncode == 2
    assert "seed 0, now 5" in done.stderr


def test_two_processes_never_train_in_one_folder(whole):
    import fcntl

    with (whole / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = ["--steps", STEPS, "--checkpoint-interval", 4, "--resume"]
        done = looped(*pretrain_arguments(whole, *options), check=False)
    assert done.returncode == 1
    assert "another process" in done.stderr


@pytest.mark.parametrize(
    "option", [("--num-layers", 0), ("--head-dim", 15), ("--rope-theta", "nan"), ("--seed", -1)]
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(tmp_path, option):
    done = looped(*pretrain_arguments(tmp_path / "out", *option), check=False)
    assert done.returncode in (1, 2)
    assert option[0].strip("-").replace("-", "_") in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Expecting property name"),
        ('{"prompt": "a"}', "expected"),
        ('{"prompt": "a", "completion": ""}', "not empty"),
    ],
)
def test_a_line_that_is_no_example_is_named(tiny_folder, tmp_path, line, message):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n\n' + line + "\n")
    done = looped(
        *["train", "gate", "--model", tiny_folder, "--data", data, "--out", tmp_path / "out"],
        check=False,
    )
    assert done.returncode == 2
    assert "line 3: " in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "stage",
    [("pretrain", "--tokenizer", "MODEL"), ("gate", "--model", "-"), ("lookahead", "--model", "-")],
    ids=lambda stage: stage[0],
)
def test_a_place_that_cannot_be_written_is_refused_before_examples_are_read(
    tiny_folder, tmp_path, stage
):
    command = [tiny_folder if word == "MODEL" else word for word in stage]
    file = tmp_path / "file"
    file.write_text("")
    for out in (file / "out", "/proc/nowhere/out"):
        done = looped("train", *command, "--data", tmp_path / "none", "--out", out, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"{out} cannot be made (" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["--task", "demo", "--data", "x.jsonl"], ["--task", "demo", "--tokenizer", "x"]],
)
def test_examples_come_from_one_place(tmp_path, arguments):
    done = looped("train", "pretrain", "--out", tmp_path / "out", *arguments, check=False)
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_seconds_of_training_learn_what_an_answer_looks_like(tmp_path):
    """The two minutes below, in short."""
    out = tmp_path / "smoke"
    looped(
        *["train", "pretrain", "--task", "demo", "--out", out, *TINY, *SHORT],
        *["--steps", 100, "--learning-rate", 2e-2],
    )
    metrics = curve(out)
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 3
    llm = LLM(str(out / "model"), **SMALL_SIZES, deterministic=True)
    for answer in answers(llm, held_out(4)):
        assert answer.completion.text.startswith(" So ")


@pytest.mark.slow
def test_two_minutes_of_training_solve_short_problems_and_depth_helps(tmp_path):
    out = tmp_path / "smoke"
    shape = ["--hidden-size", 128, "--num-heads", 4, "--intermediate-size", 320]
    looped(
        *["train", "pretrain", "--task", "demo", "--out", out, *shape],
        *["--steps", 700, "--batch-size", 16, "--learning-rate", 5e-3],
    )
    metrics = curve(out)
    first, *_, last = metrics[-1]["loop_losses"]
    assert last < 0.2 < first
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 3
    short = [problem for problem in held_out(160) if problem.difficulty == 1]
    llm = LLM(str(out / "model"), max_num_seqs=8, max_num_batched_tokens=64, max_model_len=96)
    given = answers(llm, short)
    assert sum(answer.is_right for answer in given) > len(given) / 3
