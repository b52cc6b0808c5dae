"""A demo evaluation as Markdown: policies, accuracy by depth, and what adaptive exits do."""

from collections.abc import Iterator, Sequence

from looped.measure.page import description_lines

from .accuracy_tables import FIRST_TOKENS, depth_table, mean_of, percent_of, row, rule, saved_of
from .agreement import Agreement
from .demo import AnswerSummary, DemoEvaluation
from .loop_use import exits_in_words


def demo_page(evaluation: DemoEvaluation) -> str:
    """The whole evaluation as one page."""
    return "\n".join(_page(evaluation)) + "\n"


def _page(evaluation: DemoEvaluation) -> Iterator[str]:
    yield "# Held-out demo problems"
    yield ""
    yield from description_lines(evaluation.description)
    yield f"* problems: {evaluation.num_problems}"
    yield ""
    yield "## Policies"
    yield ""
    for agreement in evaluation.agreements:
        yield from _agreement_lines(agreement, evaluation.dtype)
    yield ""
    yield "## Accuracy by depth"
    yield ""
    yield "The model loaded with P loops, prompts included; every token runs all of them."
    yield ""
    yield from _accuracy_table(evaluation.depths)
    if evaluation.thresholds:
        yield ""
        yield from _exits(evaluation)


def _agreement_lines(agreement: Agreement, dtype: str) -> Iterator[str]:
    *names, last = agreement.policies
    yield (
        f"* {agreement.exits}: identical answers (ids and exit depths) with {', '.join(names)} and "
        f"{last} in {dtype}: {agreement.num_identical} of {agreement.num_problems}"
    )
    for divergence in agreement.divergences:
        yield f"    * first divergence from {agreement.policies[0]}: {divergence}"


def _accuracy_table(depths: Sequence[AnswerSummary]) -> Iterator[str]:
    difficulties = list(depths[-1].accuracy_by_difficulty)
    yield row("P", ["right", "accuracy", *map(steps_in_words, difficulties)])
    yield rule(2 + len(difficulties))
    for summary in depths:
        overall = summary.accuracy
        parts = [percent_of(summary.accuracy_by_difficulty[steps]) for steps in difficulties]
        right = f"{overall.num_right} of {overall.num_problems}"
        yield row(str(summary.num_loops), [right, percent_of(overall), *parts])


def _exits(evaluation: DemoEvaluation) -> Iterator[str]:
    full, thresholds = evaluation.depths[-1], evaluation.thresholds
    difficulties = list(full.accuracy_by_difficulty)
    yield "## Adaptive exits"
    yield ""
    yield FIRST_TOKENS
    yield ""
    names = ["accuracy", "mean loops", "decode loops saved"]
    yield row("exits", [*names, *(f"loops, {steps_in_words(steps)}" for steps in difficulties)])
    yield rule(len(names) + len(difficulties))
    for summary in (full, *thresholds):
        means = [mean_of(summary.loops_by_difficulty[steps]) for steps in difficulties]
        cells = [percent_of(summary.accuracy), mean_of(summary.loops), saved_of(summary.loops)]
        yield row(exits_in_words(summary.threshold), [*cells, *means])
    for summary in thresholds:
        yield ""
        yield f"Exit depths at {exits_in_words(summary.threshold)}, % of decode tokens:"
        yield ""
        rows = {steps_in_words(steps): summary.loops_by_difficulty[steps] for steps in difficulties}
        yield from depth_table({**rows, "all": summary.loops})


def steps_in_words(steps: int) -> str:
    """A difficulty in words."""
    return f"{steps} step{'s' * (steps > 1)}"
