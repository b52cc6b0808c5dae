"""GSM8K as its authors publish it: a JSON object a line, `question` and a worked `answer`."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from looped.errors import UsageError
from looped.text.request_file import read_lines

from .number_extraction import reference_number


@dataclass(frozen=True, kw_only=True)
class GradeProblem:
    """A question, and the number that answers it."""

    question: str
    number: Decimal


def read_gsm8k(path: Path, limit: int | None = None) -> list[GradeProblem]:
    """Reads a file of problems.

    Args:
        path: JSONL of {"question", "answer"}, the answer ending in "#### N"; other keys are
            ignored.
        limit: problems to take from the beginning, at least one; None takes all.

    Raises:
        UsageError: with the line's number, for anything that is not such a problem.
    """
    return read_lines(path, _parse, limit)


def _parse(values: Any) -> GradeProblem:
    match values:
        case {"question": str(question), "answer": str(answer)} if question.strip():
            number = reference_number(answer)
            if number is None:
                raise UsageError(
                    'expected an answer that ends in "#### N", a number; it ends in '
                    f"{answer[-40:]!r}"
                )
            return GradeProblem(question=question.strip(), number=number)
        case _:
            raise UsageError('expected {"question": text, "answer": text ending in "#### N"}')
