"""Cells and tables that both reports have."""

from collections.abc import Iterator, Mapping, Sequence

from looped.measure.cells import number

from .accuracy import Accuracy
from .loop_use import LoopUse

FIRST_TOKENS = (
    "Loops are those of decode tokens: an answer's first token comes out of the prompt, which runs "
    "every loop, and is not counted."
)


def depth_table(groups: Mapping[str, LoopUse]) -> Iterator[str]:
    """Shares of tokens that left after each loop, a row a group."""
    num_loops = max(len(use.counts) for use in groups.values())
    yield row("", [*(f"loop {loop}" for loop in range(1, num_loops + 1)), "tokens"])
    yield rule(num_loops + 1)
    for name, use in groups.items():
        shares = [f"{100 * count / max(use.num_tokens, 1):.1f}" for count in use.counts]
        yield row(name, [*shares, str(use.num_tokens)])


def percent_of(accuracy: Accuracy) -> str:
    """A share in per cent; a dash of no problem."""
    return f"{100 * accuracy.share:.1f} %" if accuracy.num_problems else "-"


def mean_of(use: LoopUse) -> str:
    """Mean loops; a dash of no decode token."""
    return "-" if use.mean is None else number(use.mean)


def saved_of(use: LoopUse) -> str:
    """Share of decode loops that were not run, in per cent."""
    return "-" if use.saved is None else f"{100 * use.saved:.1f} %"


def row(title: str, cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {title} | {' | '.join(cells)} |"


def rule(num_columns: int) -> str:
    """The line under a table's head; the titles' column is not counted."""
    return f"|---|{'---|' * num_columns}"
