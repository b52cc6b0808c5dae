"""Arithmetic problems of one to four steps, in plain English, with answers that spell the steps.

Three kinds: a story of one person whose things come and go, people who have more or fewer than
each other (told in any order), and an expression. A problem's difficulty is its number of steps.
Every number is between 0 and 99.

Train and test never share a computation, the whole chain of steps: which side a problem is on hangs
on its steps alone, with 3 + 4 and 4 + 3 for one step, so the same numbers and operations are on the
same side in every wording, with every name and in either order. A single step may be on both: a
test problem's may occur inside a longer training problem.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .expressions import EXPRESSION_PROMPTS, FIRST, Step, draw_expression, draw_step

Split = Literal["train", "test"]

DIFFICULTIES = (1, 2, 3, 4)
TEST_SHARE = 8
"""One computation in so many is on the test side."""
QUICK_COUNT, FULL_COUNT = 87, 1000
"""Sizes of the two held-out sets; the quick one is how the full one begins."""
HELD_OUT_SEED = 9

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivy", "Jon", "Kim", "Leo")
ITEMS = ("apples", "books", "coins", "eggs", "marbles", "pens", "shells", "stamps")
START = "{name} has {value} {items}."
EVENTS = {
    "+": ("buys {value} more", "finds {value} more", "gets {value} more"),
    "-": ("gives away {value}", "loses {value}", "sells {value}"),
    "*": ("ends up with {value} times as many",),
}
RELATIONS = {
    "+": "{name} has {value} more {items} than {other}.",
    "-": "{name} has {value} fewer {items} than {other}.",
    "*": "{name} has {value} times as many {items} as {other}.",
}
STORY_QUESTION = "How many {items} does {name} have now?"
RELATION_QUESTION = "How many {items} does {name} have?"
ANSWER = " So {steps}; answer {answer}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A question in words, and the steps to its answer."""

    question: str
    steps: tuple[Step, ...]

    @property
    def difficulty(self) -> int:
        """Number of steps, 1 to 4."""
        return len(self.steps)

    @property
    def answer(self) -> int:
        """What the last step gives."""
        return self.steps[-1].result

    @property
    def solution(self) -> str:
        """What the model is to write after the question: " So 3 + 4 = 7; answer 7"."""
        return ANSWER.format(steps="; ".join(map(str, self.steps)), answer=self.answer)

    @property
    def computation(self) -> tuple[Step, ...]:
        """The steps, in any order of what is added or multiplied."""
        return tuple(step.canonical for step in self.steps)

    @property
    def split(self) -> Split:
        """The side that this computation is on, in any wording."""
        digest = hashlib.sha256("; ".join(map(str, self.computation)).encode()).digest()
        return "test" if digest[0] % TEST_SHARE == 0 else "train"


def draw_problem(rng: random.Random, split: Split, difficulty: int | None = None) -> Problem:
    """A problem of one side: all kinds and difficulties alike, or one difficulty."""
    difficulty = difficulty or rng.choice(DIFFICULTIES)
    kind = rng.choice(KINDS)
    while True:
        problem = kind(rng, difficulty)
        if problem.split == split:
            return problem


def held_out(count: int = FULL_COUNT, *, seed: int = HELD_OUT_SEED) -> list[Problem]:
    """Test problems with different questions, difficulties 1 to 4 in turn."""
    rng = random.Random(seed)
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = draw_problem(rng, "test", DIFFICULTIES[len(found) % len(DIFFICULTIES)])
        found.setdefault(problem.question, problem)
    return list(found.values())


def _story(rng: random.Random, difficulty: int) -> Problem:
    steps = tuple(_draw_chain(rng, difficulty))
    words = {"name": rng.choice(NAMES), "items": rng.choice(ITEMS)}
    sentences = [START.format(value=steps[0].left, **words)]
    for step in steps:
        event = rng.choice(EVENTS[step.operator]).format(value=step.right)
        sentences.append(f"{words['name']} {event}.")
    return Problem(question=" ".join([*sentences, STORY_QUESTION.format(**words)]), steps=steps)


def _relations(rng: random.Random, difficulty: int) -> Problem:
    steps = tuple(_draw_chain(rng, difficulty))
    names, items = rng.sample(NAMES, difficulty + 1), rng.choice(ITEMS)
    sentences = [START.format(name=names[0], value=steps[0].left, items=items)]
    for step, other, name in zip(steps, names, names[1:], strict=False):
        sentences.append(
            RELATIONS[step.operator].format(name=name, value=step.right, items=items, other=other)
        )
    rng.shuffle(sentences)
    question = RELATION_QUESTION.format(name=names[-1], items=items)
    return Problem(question=" ".join([*sentences, question]), steps=steps)


def _expression(rng: random.Random, difficulty: int) -> Problem:
    text, steps = draw_expression(rng, difficulty)
    return Problem(question=rng.choice(EXPRESSION_PROMPTS).format(expression=text), steps=steps)


def _draw_chain(rng: random.Random, length: int) -> Iterator[Step]:
    """Steps that each start from the result of the one before."""
    value = rng.randint(*FIRST)
    for _ in range(length):
        step = draw_step(rng, value)
        yield step
        value = step.result


KINDS: Sequence[Callable[[random.Random, int], Problem]] = (_story, _relations, _expression)
