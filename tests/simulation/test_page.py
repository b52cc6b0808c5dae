"""docs/simulator.md: its commands run, and what it names is there."""

import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import looped
from simulations import COSTS

from looped.sched.costing.cost_model import cost_table_names
from looped.simulation.loads.depths import FAMILIES

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


@pytest.mark.long
def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block, exits = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    few = ("--requests", 40, "--output-tokens", 9)
    looped("simulate", "run", "--costs", "ouro-1.4b-h200", "--rate", 40, *few,
           "--launch-log", "run.jsonl")  # fmt: skip
    assert [words[2] for words in commands] == ["run", "compare", "sweep", "fit", "replay"]
    for words in commands:
        assert words[0] == "looped"
        quick = ("--seeds", 1, "--precision", 1.5, "--start-rate", 20)
        more = {"run": few, "compare": few, "sweep": (*few, *quick)}
        looped(*words[1:], *more.get(words[2], ()))
    rates = []
    for line in exits.splitlines():
        result = json.loads(looped(*shlex.split(line)[1:], "--json").stdout)
        rates.append(result["numbers"]["output_tokens_per_second"])
    assert rates[1] / rates[0] >= 1.45, "what the page says of exits on the estimate"
    assert (tmp_path / "mine.json").is_file()
    assert (tmp_path / "sweep" / "capacities.csv").is_file()


def test_the_page_names_every_table_and_family():
    for name in (*cost_table_names(), *FAMILIES):
        assert f"`{name}`" in PAGE
    for field in ("row_seconds", "decode_key_seconds", "head_row_seconds", "host_item_seconds"):
        assert field.removesuffix("_seconds").replace("_", " ") in PAGE
        assert hasattr(COSTS, field)
