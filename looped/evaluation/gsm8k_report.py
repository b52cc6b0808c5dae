"""GSM8K's answers as Markdown."""

from collections.abc import Iterator

from looped.measure.page import description_lines

from .accuracy_tables import FIRST_TOKENS, depth_table, mean_of, percent_of, row, rule, saved_of
from .gsm8k import GradeEvaluation


def gsm8k_page(evaluation: GradeEvaluation) -> str:
    """The whole evaluation as one page."""
    return "\n".join(_page(evaluation)) + "\n"


def _page(evaluation: GradeEvaluation) -> Iterator[str]:
    strict, flexible, loops = evaluation.strict, evaluation.flexible, evaluation.loops
    yield "# GSM8K"
    yield ""
    yield from description_lines(evaluation.description)
    yield ""
    yield row("", [""])
    yield rule(1)
    for title, cell in (
        ("problems", str(len(evaluation.answers))),
        ("exits", evaluation.exits),
        ('accuracy, strict ("The answer is N.")', percent_of(strict)),
        ("accuracy, flexible (last number)", percent_of(flexible)),
        ("answers that never state a number", str(evaluation.num_unstated)),
        ("answers cut off at max_tokens", str(evaluation.num_cut_off)),
        ("failed requests", str(len(evaluation.failed))),
        (f"mean loops of {evaluation.num_loops}", mean_of(loops)),
        ("decode loops saved", saved_of(loops)),
    ):
        yield row(title, [cell])
    yield ""
    yield f"{FIRST_TOKENS} Exit depths, % of decode tokens:"
    yield ""
    yield from depth_table({"all": loops})
