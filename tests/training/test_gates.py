"""Stages on a frozen backbone: what they learn, what they leave as it was, what they refuse."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from checkpoints import (
    assert_same_bits,
    change_json,
    change_tensors,
    copy_fixture,
    read_checkpoint,
    write_checkpoint,
)
from command_line import looped
from demo_models import make_demo_model
from engines import SMALL_SIZES
from safetensors.numpy import load_file
from training_runs import curve, write_examples

from looped.convert import LOOKAHEAD_FILE, LookaheadGate, convert_checkpoint, write_lookahead_gate
from looped.demo.answers import answers
from looped.demo.examples import demo_source
from looped.demo.problems import held_out
from looped.errors import LoopedError
from looped.llm import LLM
from looped.loading import load_folder
from looped.sched import ExitMode, ExitOptions
from looped.training.batches import Batches, token_shares
from looped.training.export import export_changed, replace_exit_gate
from looped.training.forward import loop_losses, loop_states
from looped.training.sources import check_fits

SHORT = ["--batch-size", 4, "--sequence-length", 112, "--warmup-steps", 2, "--steps", 6]
# A target that six updates can come nearer to, whatever a loop brings the random backbone.
GATE_RUN = ("--checkpoint-interval", 2, "--margin", 0.1, "--slope", 50)
GATE = ("model.early_exit_gate.weight", "model.early_exit_gate.bias")


def arguments(stage, model, out, *options):
    task = ["--task", "demo", "--dtype", "float32", *SHORT]
    return ["train", stage, "--model", model, "--out", out, *task, *options]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A demo model with keys that a new config.json would lose, and an older look-ahead gate."""
    folder = make_demo_model(tmp_path_factory.mktemp("gates") / "backbone")
    change_json(
        folder / "config.json", eos_token_id=[0, 2], bos_token_id=1, transformers_version="4"
    )
    zeros = LookaheadGate(np.zeros((2, 32), np.float32), np.zeros(2, np.float32))
    write_lookahead_gate(folder, zeros)
    return folder


@pytest.fixture(scope="module")
def gated(backbone, tmp_path_factory):
    out = tmp_path_factory.mktemp("gates") / "gated"
    looped(*arguments("gate", backbone, out, *GATE_RUN))
    return out


def assert_all_but_the_gate_is_kept(after, before):
    new, old = read_checkpoint(after), read_checkpoint(before)
    changed = {name for name in old if new[name].tobytes() != old[name].tobytes()}
    assert changed == set(GATE)
    assert {name: t.dtype for name, t in new.items()} == {name: t.dtype for name, t in old.items()}
    assert (after / "config.json").read_bytes() == (before / "config.json").read_bytes()


@pytest.mark.parametrize("stage", ["gate", "lookahead"])
def test_the_backbone_can_be_a_hub_id(backbone, monkeypatch, tmp_path, stage):
    taken, asked = [], []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_: asked.append(name) or str(backbone)
    )
    monkeypatch.setattr(
        f"looped.training.stages.{stage}_stage", lambda out, folder, *_, **__: taken.append(folder)
    )
    looped(*arguments(stage, "ByteDance/Ouro-1.4B", tmp_path / "out"))
    assert (asked, taken) == (["ByteDance/Ouro-1.4B"], [backbone])


def test_a_backbone_that_is_nowhere_is_refused_before_anything_is_written(tmp_path):
    done = looped(*arguments("gate", tmp_path / "nowhere", tmp_path / "out"), check=False)
    assert done.returncode == 1
    assert "nowhere is neither a folder nor a hub id" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_second_stage_changes_nothing_but_the_gate(backbone, gated, tmp_path):
    model = gated / "model"
    assert not (model / LOOKAHEAD_FILE).exists()
    plain = shutil.copytree(backbone, tmp_path / "plain")
    (plain / LOOKAHEAD_FILE).unlink()
    assert_all_but_the_gate_is_kept(model, plain)
    assert {f.name for f in model.iterdir()} == {f.name for f in plain.iterdir()}
    metrics = curve(gated)
    assert metrics[-1]["loss"] < metrics[0]["loss"]


@pytest.mark.long
def test_the_gate_learns_from_losses_of_tokens_that_run_every_loop(backbone, gated):
    model = load_folder(backbone, dtype="float32").model
    batch = Batches(demo_source().draw, batch_size=4, sequence_length=112, seed=0).at(0)
    losses = loop_losses(model, loop_states(model, batch), batch) @ token_shares(batch)
    np.testing.assert_allclose(curve(gated)[0]["loop_losses"], losses, rtol=1e-4)


@pytest.mark.long
def test_a_lookahead_gate_lies_beside_a_model_that_is_as_it_was_and_serves(gated, tmp_path):
    out = tmp_path / "lookahead"
    looped(*arguments("lookahead", gated / "model", out))
    model = out / "model"
    gate = load_file(model / LOOKAHEAD_FILE)
    assert {name: (t.shape, t.dtype) for name, t in gate.items()} == {
        "weight": ((2, 32), np.dtype(np.float32)),
        "bias": ((2,), np.dtype(np.float32)),
    }
    assert gate["weight"].any(axis=1).all()
    llm = LLM(str(model), **SMALL_SIZES, deterministic=True)
    exits = ExitOptions(mode=ExitMode.LOOKAHEAD, threshold=0.3, min_loops=1)
    for answer in answers(llm, held_out(4), exits):
        assert answer.completion.error is None
        assert set(answer.decode_depths) <= {2, 3, 4}
    (model / LOOKAHEAD_FILE).unlink()
    assert_same_bits(read_checkpoint(model), read_checkpoint(gated / "model"))
    assert (model / "config.json").read_bytes() == (gated / "model" / "config.json").read_bytes()


KILL_IN_WRITE = """
import os, signal, sys
from pathlib import Path

def kill(event, arguments):
    if event == "os.rename" and Path(os.fsdecode(arguments[1])).name == "4":
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
from looped.cli import main
main()
"""


@pytest.mark.long
def test_a_run_killed_inside_a_checkpoints_write_goes_on_to_the_same_gate(
    backbone, gated, tmp_path
):
    out = tmp_path / "killed"
    command = arguments("gate", backbone, out, *GATE_RUN)
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILL_IN_WRITE, *map(str, command)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = [p.name for p in (out / "checkpoints").iterdir() if p.name.isdigit()]
    assert whole == ["2"]
    assert len(list((out / "checkpoints").iterdir())) > 1
    looped(*command, "--resume")
    assert curve(out) == curve(gated)
    assert_same_bits(read_checkpoint(out / "model"), read_checkpoint(gated / "model"))


@pytest.mark.parametrize("form", ["float32", "float16", "bfloat16 shards", "converted"])
def test_a_gate_is_replaced_in_the_type_and_form_that_it_has(form, tmp_path):
    dtype = form.split()[0] if form != "converted" else "bfloat16"
    shards = 4000 if "shards" in form else None
    before = write_checkpoint(tmp_path / "hf", dtype=dtype, max_shard_bytes=shards)
    source = before
    if form == "converted":
        source = tmp_path / "converted"
        convert_checkpoint(before, source)
        before = export_back(source, tmp_path / "back")
    weight, bias = np.linspace(-1, 1, 12, dtype=np.float32), np.float32(0.25)
    after = tmp_path / "after"
    export_changed(source, after, lambda folder: replace_exit_gate(folder, weight, bias))
    assert_all_but_the_gate_is_kept(after, before)
    tensors = read_checkpoint(after)
    assert tensors[GATE[0]].shape == (1, 12)
    assert tensors[GATE[0]].tobytes() == weight.astype(tensors[GATE[0]].dtype).tobytes()
    load_folder(after)


def export_back(source, destination):
    from looped.convert import export_checkpoint

    export_checkpoint(source, destination)
    return destination


def test_a_gate_that_is_not_finite_is_not_written(tmp_path):
    source = write_checkpoint(tmp_path / "hf", dtype="float16")
    weight = np.full(12, 1e30, np.float32)
    with pytest.raises(LoopedError, match="not finite"), np.errstate(over="ignore"):
        export_changed(
            source,
            tmp_path / "out",
            lambda folder: replace_exit_gate(folder, weight, np.float32(0)),
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stage", ["gate", "lookahead"])
def test_the_demos_task_is_refused_for_a_model_of_another_tokenizer(tiny_folder, tmp_path, stage):
    done = looped(*arguments(stage, tiny_folder, tmp_path / "out"), check=False)
    assert (done.returncode, "another tokenizer" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("stage", "num_loops"), [("gate", 1), ("lookahead", 1), ("lookahead", 2)])
def test_a_model_of_too_few_loops_is_refused(tmp_path, stage, num_loops):
    model = make_demo_model(tmp_path / "model", num_loops=num_loops)
    done = looped(*arguments(stage, model, tmp_path / "out"), check=False)
    assert (done.returncode, "takes at least" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_with_ids_that_the_model_has_not_is_refused(backbone):
    config = load_folder(backbone).config
    check_fits(demo_source(), backbone, config)
    with pytest.raises(LoopedError, match="belongs to another model"):
        check_fits(demo_source(), backbone, replace(config, vocab_size=100))


@pytest.mark.parametrize("changed", ["data", "tokenizer", "config", "weights"])
def test_other_inputs_under_the_same_names_are_not_resumed(begun, changed):
    model, data, command = begun
    if changed == "data":
        data.write_text(data.read_text().replace("fox 1", "fox 11"))
    if changed == "tokenizer":
        file = model / "tokenizer.json"
        file.write_text(file.read_text() + "\n")
    if changed == "config":
        change_json(model / "config.json", bos_token_id=7)
    if changed == "weights":
        change_tensors(model, lambda tensors: tensors["model.norm.weight"].__imul__(2))
    done = looped(*command, check=False)
    assert (done.returncode, f"{changed}_sha256" in done.stderr) == (2, True), done.stderr
    names = {"data", "tokenizer", "config", "weights"} - {changed}
    assert not any(f"{name}_sha256" in done.stderr for name in names)


@pytest.mark.long
def test_a_file_of_texts_trains_any_checkpoint(tiny_folder, tmp_path):
    data, out = write_examples(tmp_path / "data.jsonl"), tmp_path / "gate"
    looped(
        *["train", "gate", "--model", tiny_folder, "--data", data, "--out", out],
        *["--steps", 3, "--warmup-steps", 1, "--batch-size", 2, "--sequence-length", 32],
    )
    assert len(curve(out)) == 3
    assert (out / "model" / "tokenizer.json").exists()


@pytest.fixture
def begun(tmp_path):
    """A run that has come to its first checkpoint: model, data, and the command that goes on."""
    model = copy_fixture(tmp_path / "model")
    data = write_examples(tmp_path / "data.jsonl")
    command = ["train", "gate", "--model", model, "--data", data, "--out", tmp_path / "out"]
    command += ["--steps", 3, "--warmup-steps", 1, "--batch-size", 2, "--sequence-length", 32]
    from looped.training import stages

    with pytest.MonkeyPatch.context() as patched:

        def interrupted(run, *_):
            run.save(1, {"x": np.zeros(1)})
            raise LoopedError("interrupted")

        patched.setattr(stages, "train_gate", interrupted)
        assert looped(*command, check=False).returncode == 1
    return model, data, [*command, "--resume"]


@pytest.mark.parametrize(
    ("stage", "option"),
    [
        ("gate", "--rematerialise"),
        ("gate", "--weight-decay=0.1"),
        ("gate", "--exit-share=0.5"),
        ("lookahead", "--rematerialise"),
        ("lookahead", "--exit-loss=0.1"),
    ],
)
def test_options_that_would_do_nothing_are_not_there(tmp_path, stage, option):
    done = looped("train", stage, "--model", tmp_path, "--out", tmp_path, option, check=False)
    assert done.returncode == 2
    assert "No such option" in done.stderr


@pytest.mark.parametrize("stage", ["gate", "lookahead"])
def test_what_is_quick_is_checked_before_examples_are_read(backbone, gated, tmp_path, stage):
    data = ["--data", tmp_path / "nothing.jsonl", "--model", backbone]
    done = looped("train", stage, *data, "--out", gated, check=False)
    assert (done.returncode, "pass --resume" in done.stderr) == (2, True), done.stderr
    long = ["--sequence-length", 513, "--out", tmp_path / "out"]
    done = looped("train", stage, *data, *long, check=False)
    assert (done.returncode, "513 > 512" in done.stderr) == (2, True), done.stderr
    done = looped("train", stage, *data, "--out", backbone / "out", check=False)
    assert (done.returncode, "lies in the source" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "out").exists()


def test_a_picture_that_fails_costs_no_model(gated, backbone, tmp_path, monkeypatch):
    out = Path(shutil.copytree(gated, tmp_path / "run"))
    shutil.rmtree(out / "model")
    (out / ".model.partial-killed").mkdir()

    def fail(run):
        raise LoopedError("no picture")

    monkeypatch.setattr("looped.training.stages.draw_losses", fail)
    command = arguments("gate", backbone, out, *GATE_RUN, "--resume")
    done = looped(*command, check=False)
    assert (done.returncode, "no picture" in done.stderr) == (1, True)
    assert_same_bits(read_checkpoint(out / "model"), read_checkpoint(gated / "model"))
    assert not (out / ".model.partial-killed").exists()
