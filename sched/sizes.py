"""Sizes of a launch that follow from others where a user leaves them out: the budget, the chunk.

Whoever derives one of them, an engine, a simulator or a benchmark, asks here.
"""

DEFAULT_BUDGET = 256
DEFAULT_CHUNK_SIZE = 128
"""No measurement in experiments/ speaks for another yet."""


def default_budget(max_num_seqs: int) -> int:
    """Return max_num_batched_tokens: 256, or what holds a whole chunk beside more than 128 rows.

    That is the next power of two at or above max_num_seqs + 128.
    """
    return max(DEFAULT_BUDGET, 1 << (max_num_seqs + DEFAULT_CHUNK_SIZE - 1).bit_length())


def default_chunk_size(budget: int, max_num_seqs: int) -> int:
    """Return prefill_chunk_size: min(128, budget - max_num_seqs + 1), which fits every policy."""
    return min(DEFAULT_CHUNK_SIZE, budget - max_num_seqs + 1)


def useful_chunk_size(longest: int) -> int:
    """Return the chunk below which prompts take more launches than they have to: min(128, longest).

    Args:
        longest: prompt that can come, in tokens.
    """
    return min(DEFAULT_CHUNK_SIZE, longest)


def budget_for(chunk_size: int, max_num_seqs: int) -> int:
    """Return the smallest budget that has room for the chunk beside all other requests' rows."""
    return chunk_size + max_num_seqs - 1
