"""The example that `make demo` runs."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import pytest
from demo_models import make_demo_model

from looped.demo.problems import held_out
from looped.evaluation.demo import ENGINE

ROOT = Path(__file__).parents[2]
EXAMPLE, README = ROOT / "examples" / "loops_per_token.py", ROOT / "README.md"


def load_example():
    spec = importlib.util.spec_from_file_location("loops_per_token", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_token_stands_above_its_loops():
    tokens = (" So", " 1", "2", ";", " answer", " 7", "<|endoftext|>", "\n")
    shown = load_example().two_lines(tokens, (4, 2, 2, 1, 3, 4, 1, 2))
    assert shown.splitlines() == [
        "  So 1 2 ; answer 7 <|endoftext|> ·",
        "   4 2 2 1      3 4             1 2",
    ]


@pytest.mark.long
def test_the_whole_example_shows_problems_tokens_and_loops(tmp_path, capsys, monkeypatch):
    """With P = 2 and few rows, the shapes that the evaluation's tests compile."""
    example = load_example()
    few = replace(ENGINE, max_num_seqs=4, max_num_batched_tokens=8, prefill_chunk_size=5)
    monkeypatch.setattr(example, "ENGINE", few)
    example.main(str(make_demo_model(tmp_path / "model", num_loops=2)), "0.5")
    shown = capsys.readouterr().out
    for problem in held_out(example.NUM_PROBLEMS):
        assert f"{problem.question}\n" in shown
    assert shown.count("wrong: it is") + shown.count("  right\n") == example.NUM_PROBLEMS
    assert " of 2 loops a token, first tokens left out\n" in shown


@pytest.mark.long
def test_the_readme_shows_what_the_example_prints(capsys):
    """Questions, tokens and verdicts; the loops under them may differ by one on another machine."""
    load_example().main()
    (shown,) = re.findall(r"```\n(Ada has .*?)```", README.read_text(), flags=re.DOTALL)
    assert without_loops(shown) == without_loops(capsys.readouterr().out)


def without_loops(text):
    return [
        line for line in text.splitlines() if not re.fullmatch(r"[\d ]+|.* loops a token, .*", line)
    ]
