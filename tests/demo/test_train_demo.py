"""The script that trains what ships: every stage, the evaluation, the card."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from looped.demo.tokenizer import demo_tokenizer
from looped.models import num_parameters
from looped.training.config import ShapeConfig

SCRIPT = Path(__file__).parents[2] / "experiments" / "train_demo.py"
COMMANDS = {
    stage: ["train", stage, "--task", "demo"] for stage in ("pretrain", "gate", "lookahead")
}


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("train_demo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_stage_starts_from_the_model_of_the_one_before(script):
    options = {"pretrain": ["--steps", "9"], "gate": [], "lookahead": []}
    commands = script.stage_commands(Path("runs"), options)
    assert commands["pretrain"][-2:] == ["--steps", "9"]
    assert "runs/pretrain/model" in commands["gate"]
    assert "runs/gate/model" in commands["lookahead"]


def test_the_card_has_the_numbers_that_were_measured(script, tmp_path):
    for stage in COMMANDS:
        (tmp_path / stage).mkdir()
        lines = [json.dumps({"step": step, "seconds": 30.0}) for step in range(4)]
        (tmp_path / stage / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = {"seed": 5, "sequence_length": 128}
    (tmp_path / "pretrain" / "run.json").write_text(json.dumps(run))
    depth = {
        "accuracy": {"num_right": 870, "num_problems": 1000, "share": 0.87},
        "accuracy_by_difficulty": {"1": {"share": 0.99}, "4": {"share": 0.701}},
    }
    values = {"num_problems": 1000, "command": "looped eval demo --full", "depths": [depth]}
    machine = {"processor": "EPYC", "num_cores": 2, "devices": ["cpu: cpu"], "dtype": "float32"}
    versions = {"python": "3.11.7", "jax": "0.10.2", "looped": "0.1.0", "date": "2026-11-30T08:56"}
    values |= (
        machine
        | versions
        | {"thresholds": [{"threshold": 0.9}, {"threshold": 0.8}], "min_loops": 1}
    )
    (tmp_path / "result.json").write_text(json.dumps(values))
    page = "# Held-out\n\n## Policies\n\nall\n\n## Accuracy by depth\n\n| table |\n"
    (tmp_path / "result.md").write_text(page)
    config = ShapeConfig().model_config(demo_tokenizer().get_vocab_size())
    assert num_parameters(config) <= script.MAX_PARAMETERS
    card = script.model_card(config, tmp_path, tmp_path, COMMANDS)
    for part in (
        "## Data\n",
        "## Recipe\n",
        "## Accuracy by depth\n",
        "## Limits\n",
        "seed 5, in 6 minutes of updates in all (4 + 4 + 4 updates)",
        "    looped train gate --task demo\n",
        "130 of 1000 held-out problems wrong",
        "4 steps: 70.1 % right",
        "`looped eval demo --full`; 2026-11-30, EPYC, 2 cores, cpu: cpu; Python 3.11.7, JAX 0.10.2",
        "Ada, Ben, Cleo",
        "--exit-threshold 0.9 --min-loops 1\n",
    ):
        assert part in card
    assert "# Held-out" not in card


@pytest.mark.slow
def test_the_whole_recipe_runs_in_short_twice(script, tmp_path, monkeypatch):
    short = "--steps 6 --warmup-steps 1 --batch-size 4 --sequence-length 112"
    command = ["train_demo.py", "--runs", tmp_path / "runs", "--model", tmp_path / "model"]
    command += ["--pretrain", f"{short} --hidden-size 32 --num-heads 2 --head-dim 16"]
    command += ["--gate", short, "--lookahead", short, "--eval", "--n 4 --threshold 0.5 --no-plots"]
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    script.main()
    first = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    assert {"README.md", "config.json", "tokenizer.json", "lookahead_gate.safetensors"} <= {*first}
    monkeypatch.setattr(sys, "argv", [*map(str, command), "--overwrite"])
    script.main()
    again = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    assert first.keys() == again.keys()
    assert all(first[name] == again[name] for name in first.keys() - {"README.md"})
