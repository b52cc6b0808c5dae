"""Row counts that are compiled ahead: a launch is padded to the next rung of its ladder.

Only rows are a bucket; depths, positions, tables and options are data. The rungs are few (every
one is an executable) and dense where launches are common: `recurrent` has one for a chunk beside
a full house of decode rows, which the next power of two would nearly double.
"""

from bisect import bisect_left
from functools import cache

from .errors import InterfaceError

Ladder = tuple[int, ...]
"""Row counts, ascending."""

MIN_ROWS = 2
"""One row is slower than two on a CPU, where it becomes another kind of product."""
MIN_PREFILL_ROWS = 32
"""Shorter prompts gain little from a rung of their own."""
MIXED_ROWS_MULTIPLE = 16
"""What the rung of the common mixed launch is rounded up to."""


@cache
def recurrent_ladder(budget: int, chunk: int, max_num_seqs: int) -> Ladder:
    """Powers of two below the budget, the budget, and chunk + max_num_seqs rounded up to 16."""
    mixed = -(-(chunk + max_num_seqs) // MIXED_ROWS_MULTIPLE) * MIXED_ROWS_MULTIPLE
    return tuple(sorted({*_powers_of_two(MIN_ROWS, budget), min(mixed, max(MIN_ROWS, budget))}))


@cache
def head_ladder(max_num_seqs: int) -> Ladder:
    """Powers of two below max_num_seqs, and max_num_seqs."""
    return _powers_of_two(MIN_ROWS, max_num_seqs)


@cache
def prefill_ladder(budget: int) -> Ladder:
    """Powers of two from 32 below the budget, and the budget."""
    return _powers_of_two(MIN_PREFILL_ROWS, budget)


def score_ladder(num_rows: int) -> Ladder:
    """One rung, for the chunk: as many rows as a prompt item can have."""
    return (max(MIN_ROWS, num_rows),)


def prefill_pads_no_more(num_rows: int, budget: int, chunk: int, max_num_seqs: int) -> bool:
    """Whether a prefill launch of `num_rows` is padded no further than single passes would be."""
    single = bucket_for(recurrent_ladder(budget, chunk, max_num_seqs), num_rows)
    return bucket_for(prefill_ladder(budget), num_rows) <= single


def bucket_for(ladder: Ladder, num_rows: int) -> int:
    """Return the lowest rung that holds `num_rows`.

    Raises:
        InterfaceError: no rows, or more than the highest rung.
    """
    if not 1 <= num_rows <= ladder[-1]:
        raise InterfaceError(f"expected 1..{ladder[-1]} rows in a launch, got {num_rows}")
    return ladder[bisect_left(ladder, num_rows)]


def _powers_of_two(lowest: int, highest: int) -> Ladder:
    rungs = []
    rung = lowest
    while rung < highest:
        rungs.append(rung)
        rung *= 2
    return (*rungs, max(MIN_ROWS, highest))
