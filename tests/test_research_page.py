"""docs/research.md: its policy, its Python, its package and its commands, in the page's order."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import looped
from plug_ins import install_plug_in
from whole_run import run_many

from looped.evaluation.demo import ENGINE
from looped.sched import ConfigError, policy_named
from looped.sched.policies import GROUP, registry

PAGE = (Path(__file__).parents[1] / "docs" / "research.md").read_text()
MODULE = "nearest_first"
FEW_STEPS = (
    *("--max-num-batched-tokens", ENGINE.max_num_batched_tokens),
    *("--prefill-chunk-size", ENGINE.prefill_chunk_size, "--max-model-len", ENGINE.max_model_len),
    *("--dtype", "float32", "--no-prefix-caching"),
)
"""Sizes of the page's own engine, and of other tests of the demo model: compiled once."""
BLOCKS = [
    (language, text) for language, text in re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
]
POLICY, *SAMPLES = [text for language, text in BLOCKS if language == "python"]
(PACKAGE,) = [tomllib.loads(text) for language, text in BLOCKS if language == "toml"]
COMMANDS = [
    shlex.split(line) for language, text in BLOCKS if language == "sh" for line in text.splitlines()
]


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """The page's package on the path, as pip would leave it."""
    ((name, value),) = PACKAGE["project"]["entry-points"][GROUP].items()
    module, _, attribute = value.partition(":")
    assert [module] == PACKAGE["tool"]["setuptools"]["py-modules"] == [MODULE]
    points = {name.replace("-", "_"): attribute}
    install_plug_in(monkeypatch, tmp_path / "packages", MODULE, POLICY, **points)
    yield policy_named(name)
    monkeypatch.undo()
    sys.modules.pop(MODULE, None)
    registry.installed.cache_clear()


def test_the_policy_has_60_lines_at_most():
    assert "in 60 lines" in PAGE.splitlines()[0]
    assert len(POLICY.splitlines()) <= 60


@pytest.mark.long
def test_the_python_of_the_page_runs_and_prints_what_it_shows(installed, capsys):
    shown = [text for language, text in BLOCKS if language == "text"]
    printed = []
    for sample in SAMPLES:
        exec(sample, {})
        printed.append(capsys.readouterr().out)
    assert [text for text in printed if text] == shown


@pytest.mark.usefixtures("installed")
def test_the_factory_of_the_page_takes_text_and_checks_it():
    names = {}
    exec(next(sample for sample in SAMPLES if "def sized" in sample), names)
    assert names["sized"]("8").item_size(None, None) == 8
    with pytest.raises(ConfigError, match="above 0, got '0'"):
        names["sized"]("0")


@pytest.mark.long
def test_the_commands_of_the_page_run(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert COMMANDS[0] == ["pip", "install", "-e", "."]
    for program, *words in COMMANDS[1:]:
        assert program == "looped"
        looped(*words, *(FEW_STEPS if words[0] == "generate" else ()))
    assert {"depths.json", "gates.npz", "run.jsonl"} <= {path.name for path in tmp_path.iterdir()}


def test_the_policy_is_safe_and_fair_in_any_run(installed):
    run_many(installed, max_examples=60)
