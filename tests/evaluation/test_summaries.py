"""Accuracy, loops and agreement of completions that were made by hand."""

import json

import pytest
from completions import completion

from looped.demo.answers import Answer
from looped.demo.expressions import Step
from looped.demo.problems import Problem
from looped.errors import LoopedError
from looped.evaluation.accuracy import Accuracy
from looped.evaluation.agreement import compare_policies
from looped.evaluation.demo import DemoEvaluation, summarise
from looped.evaluation.demo_report import demo_page
from looped.evaluation.loop_use import LoopUse
from looped.evaluation.result_folder import write_demo
from looped.measure.divergence import Divergence

ONE = Problem(question="What is 3 + 4?", steps=(Step(3, "+", 4),))
TWO = Problem(question="What is (3 + 4) * 2?", steps=(Step(3, "+", 4), Step(7, "*", 2)))


def measured(expected, got):
    return Divergence(token_index=1, margin=0.25, exit_index=None)


def test_shares_are_of_all_problems_and_none_is_zero():
    assert Accuracy.of([True, False, True, True]).share == 0.75
    assert Accuracy.of([]).to_json() == {"num_right": 0, "num_problems": 0, "share": 0.0}


def test_first_tokens_are_left_out_of_loops():
    use = LoopUse.of([completion((1, 2, 3), (4, 1, 2)), completion((1, 2), (4, 2))], 4)
    assert use.counts == (1, 2, 0, 0)
    assert (use.num_tokens, use.num_loops, use.mean) == (3, 5, 5 / 3)
    assert use.saved == pytest.approx(1 - 5 / 12)


def test_answers_of_one_token_have_no_mean():
    use = LoopUse.of([completion((1,), (4,))], 4)
    assert (use.num_tokens, use.mean, use.saved) == (0, None, None)


def test_answers_are_summed_up_by_difficulty():
    answered = [
        Answer(problem=TWO, completion=completion((1, 2, 3), (4, 4, 3), " So …; answer 14")),
        Answer(problem=ONE, completion=completion((1, 2, 3), (4, 2, 2), " So …; answer 7")),
        Answer(problem=ONE, completion=completion((1, 2), (4, 1), " So …; answer 8")),
    ]
    summary = summarise(answered, 4, 0.5)
    assert list(summary.accuracy_by_difficulty) == [1, 2]
    assert summary.accuracy == Accuracy(num_right=2, num_problems=3)
    assert summary.accuracy_by_difficulty[1] == Accuracy(num_right=1, num_problems=2)
    assert summary.loops.counts == (1, 2, 1, 1)
    assert summary.loops_by_difficulty[1].counts == (1, 2, 0, 0)
    assert summary.loops_by_difficulty[2].mean == 3.5


def test_policies_agree_where_ids_and_depths_are_equal():
    same = [completion((1, 2), (4, 2)), completion((3,), (4,))]
    agreement = compare_policies("every loop", {"mixed": same, "atomic": list(same)}, measured)
    assert agreement.is_full
    assert (agreement.num_identical, agreement.num_problems) == (2, 2)
    assert agreement.divergences == ()


def test_a_problem_counts_once_however_many_policies_differ():
    base = [completion((1, 2)), completion((3, 4)), completion((5, 6), (4, 3))]
    separate = [completion((1, 2)), completion((3, 9)), completion((5, 6), (4, 2))]
    atomic = [completion((1, 2)), completion((3, 8)), completion((5, 6), (4, 3))]
    agreement = compare_policies(
        "threshold 0.5", {"mixed": base, "separate": separate, "atomic": atomic}, measured
    )
    assert not agreement.is_full
    assert agreement.num_identical == 1
    assert [(found.policy, found.problem_index) for found in agreement.divergences] == [
        ("separate", 1),
        ("atomic", 1),
    ]
    assert str(agreement.divergences[0]) == (
        "separate, problem 1, token 1, where the best two logits are 0.25 apart"
    )


def test_an_exit_alone_makes_answers_differ():
    seen = []

    def measure(expected, got):
        seen.append((expected.exit_depths, got.exit_depths))
        return Divergence(token_index=None, margin=None, exit_index=1)

    runs = {"mixed": [completion((1, 2), (4, 3))], "atomic": [completion((1, 2), (4, 2))]}
    agreement = compare_policies("threshold 0.5", runs, measure)
    assert seen == [((4, 3), (4, 2))]
    assert str(agreement.divergences[0]) == "atomic, problem 0, exit of token 1"


def evaluation(dtype, other):
    answered = [
        Answer(problem=ONE, completion=completion((1, 2), (4, 2), " So …; answer 7")),
        Answer(problem=TWO, completion=completion((1, 2), (4, 4), " So …; answer 1")),
    ]
    base = [answer.completion for answer in answered]
    runs = {"mixed": base, "separate": base, "atomic": [base[0], other]}
    return DemoEvaluation(
        description={"model": "a model"},
        dtype=dtype,
        num_problems=2,
        agreements=[compare_policies("every loop", runs, measured)],
        depths=[summarise(answered, loops, 1.0) for loops in (1, 2, 3, 4)],
        thresholds=[summarise(answered, 4, 0.5)],
    )


def test_the_page_says_how_many_are_identical():
    same = evaluation("float32", completion((1, 2), (4, 4)))
    page = demo_page(same)
    assert (
        "* every loop: identical answers (ids and exit depths) with mixed, separate and atomic in "
        "float32: 2 of 2\n"
    ) in page
    assert "| 4 | 1 of 2 | 50.0 % | 100.0 % | 0.0 % |" in page
    assert "| threshold 0.5 | 50.0 % | 3.00 | 25.0 % | 2.00 | 4.00 |" in page
    assert "| all | 0.0 | 50.0 | 0.0 | 50.0 | 2 |" in page
    same.check_agreement()


def test_a_folder_holds_the_page_the_json_and_the_pictures(tmp_path):
    same = evaluation("float32", completion((1, 2), (4, 4)))
    write_demo(tmp_path / "out", same, has_plots=True)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {"accuracy-by-depth.png", "loops-by-difficulty.png", "exit-depths.png"}
    assert files == {"result.json", "result.md", *pictures}
    assert (tmp_path / "out" / "result.md").read_text() == demo_page(same)
    assert json.loads((tmp_path / "out" / "result.json").read_text())["dtype"] == "float32"
    write_demo(tmp_path / "plain", same, has_plots=False)
    assert len(list((tmp_path / "plain").iterdir())) == 2


def test_parting_is_an_error_in_float32_alone():
    other = completion((1, 9), (4, 4))
    parted = evaluation("float32", other)
    assert "first divergence from mixed: atomic, problem 1, token 1" in demo_page(parted)
    with pytest.raises(LoopedError, match=r"differ in 1 of 2 answers .every loop.*atomic"):
        parted.check_agreement()
    evaluation("bfloat16", other).check_agreement()
