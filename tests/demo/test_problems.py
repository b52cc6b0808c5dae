"""The demo's task: answers that are right, difficulties that are steps, sides that never meet."""

import random
import re
from collections import Counter, defaultdict

import pytest

from looped.demo.expressions import Step, draw_expression
from looped.demo.extraction import final_answer
from looped.demo.problems import (
    DIFFICULTIES,
    FULL_COUNT,
    QUICK_COUNT,
    Problem,
    draw_problem,
    held_out,
)


def many(split, count, seed=0):
    rng = random.Random(seed)
    return [draw_problem(rng, split) for _ in range(count)]


def test_expressions_are_worked_out_as_python_would():
    rng = random.Random(1)
    for index in range(2000):
        text, steps = draw_expression(rng, 1 + index % 4)
        assert eval(text) == steps[-1].result
        assert len(steps) == 1 + index % 4


def test_every_step_is_right_small_and_starts_from_one_before():
    for problem in many("train", 2000):
        for before, step in zip(problem.steps, problem.steps[1:], strict=False):
            assert before.result in (step.left, step.right)
        assert all(0 <= step.result <= 99 for step in problem.steps)
        assert problem.solution.endswith(f"answer {problem.answer}")
        assert problem.difficulty == problem.solution.count("=")


def test_all_numbers_of_a_word_problem_are_in_its_question():
    for problem in many("train", 500):
        given = set(re.findall(r"\d+", problem.question))
        assert str(problem.steps[0].left) in given
        if "How many" in problem.question:
            assert given == {str(problem.steps[0].left), *(str(s.right) for s in problem.steps)}


def test_kinds_and_difficulties_come_alike():
    counts = Counter(problem.difficulty for problem in many("train", 4000))
    assert set(counts) == set(DIFFICULTIES)
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_training_never_draws_a_held_out_question_nor_its_computation():
    test = held_out(FULL_COUNT)
    train = many("train", 20_000)
    assert not {p.question for p in test} & {p.question for p in train}
    assert not {ordered(p.steps) for p in test} & {ordered(p.steps) for p in train}


def ordered(steps):
    """A chain with the operands of + and * in order, by other code than the task's own."""
    chain = []
    for step in steps:
        numbers = (step.left, step.right)
        chain.append((step.operator, *(numbers if step.operator == "-" else sorted(numbers))))
    return tuple(chain)


def test_a_chain_is_on_one_side_whatever_the_words_and_the_order_of_operands():
    """Many problems of both sides: chains that come up again are where they were."""
    sides, forms = {}, defaultdict(set)
    for seed, split in enumerate(("train", "test")):
        for problem in many(split, 10_000, seed):
            chain = ordered(problem.steps)
            assert sides.setdefault(chain, split) == split, problem
            forms[chain].add(problem.steps)
    assert Counter(sides.values())["test"] > 500
    swapped = [chain for chain, steps in forms.items() if len(steps) > 1]
    assert {sides[chain] for chain in swapped} == {"train", "test"}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_swapped_operands_leave_a_problem_on_its_side(length):
    rng = random.Random(length)
    for _ in range(300):
        problem = draw_problem(rng, "test", length)
        for index, step in enumerate(problem.steps):
            if step.operator == "-":
                continue
            swapped = (
                *problem.steps[:index],
                Step(step.right, step.operator, step.left),
                *problem.steps[index + 1 :],
            )
            assert Problem(question="?", steps=swapped).split == "test"


def test_a_difference_keeps_its_order():
    assert Step(9, "-", 4).canonical == Step(9, "-", 4)
    assert Step(9, "+", 4).canonical == Step(4, "+", 9)
    assert Step(9, "*", 4).canonical == Step(4, "*", 9)


def test_other_seeds_draw_other_problems_and_the_same_seed_the_same():
    assert held_out(50) == held_out(50)
    assert held_out(50) != held_out(50, seed=10)
    assert many("train", 20, seed=3) == many("train", 20, seed=3)


def test_the_quick_set_is_how_the_full_one_begins():
    quick, full = held_out(QUICK_COUNT), held_out(FULL_COUNT)
    assert (len(quick), len(full)) == (87, 1000)
    assert full[:87] == quick
    assert len({problem.question for problem in full}) == 1000
    assert Counter(problem.difficulty for problem in full) == dict.fromkeys(DIFFICULTIES, 250)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" So 3 + 4 = 7; answer 7", 7),
        (" So 3 + 4 = 7; answer 42\nanswer 9", 42),
        (" So 3 + 4 = 7; answer", None),
        ("", None),
        (" no answers 7", None),
    ],
)
def test_the_final_answer_is_the_number_after_the_word(text, answer):
    assert final_answer(text) == answer
