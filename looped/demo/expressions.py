"""Single steps of arithmetic, and expressions that take several of them to work out."""

import operator
import random
from dataclasses import dataclass

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMMUTATIVE = ("+", "*")
LARGEST = 99
FIRST = (2, 50)
"""Range of the number that a problem starts from."""
EXPRESSION_PROMPTS = ("What is {expression}?", "Work out {expression}.")


@dataclass(frozen=True)
class Step:
    """One operation on two numbers; writes itself as "3 + 4 = 7"."""

    left: int
    operator: str
    right: int

    @property
    def result(self) -> int:
        return OPERATIONS[self.operator](self.left, self.right)

    @property
    def is_small(self) -> bool:
        """Whether the result is between 0 and 99."""
        return 0 <= self.result <= LARGEST

    @property
    def canonical(self) -> "Step":
        """The same step with the smaller number first, where the order says nothing."""
        is_swapped = self.operator in COMMUTATIVE and self.left > self.right
        return Step(self.right, self.operator, self.left) if is_swapped else self

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right} = {self.result}"


def draw_step(rng: random.Random, left: int) -> Step:
    """A step from a given number: plus or minus 2 to 9, or times 2 to 5, with a small result."""
    while True:
        sign = rng.choice("++--*")
        step = Step(left, sign, rng.randint(2, 5 if sign == "*" else 9))
        if step.is_small:
            return step


def draw_expression(rng: random.Random, num_steps: int) -> tuple[str, tuple[Step, ...]]:
    """An expression and its steps, in the order in which they are worked out.

    Grown from the inside out: what there is becomes the left or the right side of the next
    operation, in brackets where precedence asks for them.
    """
    steps = [draw_step(rng, rng.randint(*FIRST))]
    text = f"{steps[0].left} {steps[0].operator} {steps[0].right}"
    while len(steps) < num_steps:
        step = draw_step(rng, steps[-1].result)
        is_right = step.operator != "-" and rng.random() < 0.5
        # On the right of an operation of its own rank, too, so that one order of steps is meant.
        is_loose = steps[-1].operator != "*" and (step.operator == "*" or is_right)
        text = f"({text})" if is_loose or (is_right and step.operator == "*") else text
        if is_right:
            step = Step(step.right, step.operator, step.left)
            text = f"{step.left} {step.operator} {text}"
        else:
            text = f"{text} {step.operator} {step.right}"
        steps.append(step)
    return text, tuple(steps)
