"""Greedy answers of the engine to held-out problems."""

from collections.abc import Sequence
from dataclasses import dataclass

from looped.engine.outputs import Completion
from looped.llm import LLM
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

from .extraction import final_answer
from .problems import Problem

MAX_TOKENS = 48
"""More than any solution has."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One problem, and what the engine wrote."""

    problem: Problem
    completion: Completion

    @property
    def is_right(self) -> bool:
        """Whether the final number is the problem's."""
        return final_answer(self.completion.text or "") == self.problem.answer

    @property
    def decode_depths(self) -> tuple[int, ...]:
        """Loops of every token but the first, which runs all of them under any exit rule."""
        return tuple(self.completion.exit_depths[1:])


def answers(
    llm: LLM, problems: Sequence[Problem], exit_options: ExitOptions | None = None
) -> list[Answer]:
    """Answers problems together, in their plain form.

    Args:
        llm: loaded with the number of loops that the prompts are to run, too.
        problems: what to ask.
        exit_options: when tokens may leave; None runs every loop.
    """
    params = SamplingParams(max_tokens=MAX_TOKENS, exit=exit_options or ExitOptions(threshold=1.0))
    completions = llm.generate([problem.question for problem in problems], params)
    return [
        Answer(problem=problem, completion=completion)
        for problem, completion in zip(problems, completions, strict=True)
    ]
