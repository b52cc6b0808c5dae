"""Policies give the same answers to held-out problems, and the command says so."""

import json
from dataclasses import replace

import pytest
from command_line import looped
from demo_models import make_demo_model

from looped.demo.answers import MAX_TOKENS
from looped.demo.problems import QUICK_COUNT, held_out
from looped.errors import UsageError
from looped.evaluation.accuracy import Accuracy
from looped.evaluation.demo import (
    ENGINE,
    LONGEST_PROMPT,
    POLICIES,
    AnswerSummary,
    DemoEvaluation,
    evaluate_demo,
)
from looped.evaluation.loop_use import LoopUse
from looped.sched import ExitMode
from looped.text.tokenizer import Tokenizer

FEW_RUNGS = replace(ENGINE, max_num_seqs=4, max_num_batched_tokens=8, prefill_chunk_size=5)


def evaluation(num_right=3):
    """Of four problems at every loop, and nothing else."""
    accuracy = Accuracy(num_right=num_right, num_problems=4)
    loops = LoopUse(counts=(4,))
    summary = AnswerSummary(
        num_loops=1,
        threshold=1.0,
        accuracy=accuracy,
        accuracy_by_difficulty={1: accuracy},
        loops=loops,
        loops_by_difficulty={1: loops},
    )
    return DemoEvaluation(
        description={},
        dtype="float32",
        num_problems=4,
        agreements=[],
        depths=[summary],
        thresholds=[],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_demo_model(tmp_path_factory.mktemp("demo") / "model")


def test_every_held_out_problem_fits_the_engine(folder):
    tokenizer = Tokenizer.from_folder(folder)
    longest = max(len(tokenizer.encode(problem.question)) for problem in held_out())
    assert longest <= LONGEST_PROMPT
    assert ENGINE.max_model_len == LONGEST_PROMPT + MAX_TOKENS


@pytest.mark.long
def test_policies_give_identical_answers(tmp_path):
    """With P = 2, so that two shapes are compiled and not four."""
    small = make_demo_model(tmp_path / "model", num_loops=2)
    evaluation = evaluate_demo(
        str(small), held_out(12), thresholds=[0.5], min_loops=1, config=FEW_RUNGS
    )
    assert [agreement.exits for agreement in evaluation.agreements] == [
        "every loop",
        "threshold 0.5",
    ]
    for agreement in evaluation.agreements:
        assert agreement.policies == POLICIES
        assert (agreement.num_identical, agreement.num_problems) == (12, 12), agreement
    assert [summary.num_loops for summary in evaluation.depths] == [1, 2]
    shallow, full = (summary.loops for summary in evaluation.depths)
    assert shallow.counts[0] == shallow.num_tokens > 0
    assert full.counts[1] == full.num_tokens > 0
    (adaptive,) = evaluation.thresholds
    assert min(adaptive.loops.counts) > 0
    assert list(adaptive.loops_by_difficulty) == [1, 2, 3, 4]


@pytest.mark.slow
def test_87_of_87_answers_are_identical_and_the_command_says_so(folder, tmp_path):
    done = looped(
        "eval", "demo", "--model", folder, "--threshold", 0.5, "--threshold", 0.8,
        "--min-loops", 1, "--out", tmp_path / "out",
    )  # fmt: skip
    said = "identical answers (ids and exit depths) with mixed, separate and atomic in float32"
    for exits in ("every loop", "threshold 0.5"):
        assert f"* {exits}: {said}: {QUICK_COUNT} of {QUICK_COUNT}\n" in done.stdout
    assert (tmp_path / "out" / "result.md").read_text() == done.stdout
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"accuracy-by-depth.png", "loops-by-difficulty.png", "exit-depths.png"}
    assert files == {"result.json", "result.md", *pictures}
    values = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [summary["num_loops"] for summary in values["depths"]] == [1, 2, 3, 4]
    assert [summary["threshold"] for summary in values["thresholds"]] == [0.5, 0.8]
    assert all(count > 0 for count in values["thresholds"][0]["loops"]["counts"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--full", "--n", 3), "--full is all held-out problems"),
        (("--n", 1001), "--n must be at most 1000, got 1001"),
        (("--threshold", 0.5, "--threshold", 0.5), "thresholds must differ"),
        (("--exit-mode", "trace"), "there are none here"),
        (("--threshold", 0.5, "--threshold", 1), "threshold 1 is every loop"),
        (("--threshold", "nan"), "Invalid value for '--threshold'"),
        (("--min-accuracy", "nan"), "Invalid value for '--min-accuracy'"),
        (("--min-accuracy", 101), "Invalid value for '--min-accuracy'"),
        (("--out", "/"), "/ exists; choose another name"),
        (("--out", "/proc/nowhere/results", "--no-plots"), "results cannot be made (/proc: "),
    ],
)
def test_mistakes_are_refused_before_the_model_is_loaded(arguments, message):
    done = looped("eval", "demo", "--model", "nobody/nothing", *arguments, check=False)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_folder_that_cannot_be_written_costs_no_answer(folder, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr("looped.evaluation.result_folder.write_demo", fail)
    monkeypatch.setattr("looped.evaluation.demo.evaluate_demo", lambda *_, **__: evaluation())
    out = tmp_path / "out"
    done = looped("eval", "demo", "--model", folder, "--out", out, "--no-plots", check=False)
    assert (done.returncode, "the disk is full" in done.stderr) == (1, True)
    assert done.stdout.startswith("# Held-out demo problems")


@pytest.mark.parametrize(("least", "returncode"), [(75, 0), (75.1, 1)])
def test_the_command_fails_below_the_accuracy_that_is_asked_for(monkeypatch, least, returncode):
    monkeypatch.setattr("looped.evaluation.demo.evaluate_demo", lambda *_, **__: evaluation())
    done = looped("eval", "demo", "--model", "any", "--min-accuracy", least, check=False)
    assert done.returncode == returncode, done.stderr
    assert done.stdout.startswith("# Held-out demo problems")
    said = f"3 of 4 answers are right with every loop, 75.0 %; at least {least:g} % were asked for"
    assert (said in done.stderr) == bool(returncode)


def test_a_model_of_another_tokenizer_is_refused_at_the_door(tiny_folder):
    done = looped("eval", "demo", "--model", tiny_folder, "--n", 1, check=False)
    assert (done.returncode, "another tokenizer" in done.stderr) == (1, True), done.stderr
    assert "loaded" not in done.stderr
    assert "--data" not in done.stderr


def test_a_mode_without_its_heads_is_refused_at_the_door(folder):
    with pytest.raises(UsageError, match="lookahead_gate"):
        evaluate_demo(str(folder), held_out(1), exit_mode=ExitMode.LOOKAHEAD)
