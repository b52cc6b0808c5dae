"""Attention over a paged KV cache whose rows are decode tokens and prompt chunks, mixed.

Keys and values of all layers lie in one flat pool per kind, [L*N K S D]: N blocks a layer, S
positions a block, head-major, so that one head's part of a block is contiguous. A step writes its
rows' keys and values first, then attends; a token that exits early copies its position to the
planes it skipped.

    attention      ragged_paged_attention: the one contract, its checks, its backends by name
    xla            backend "xla": the reference, and the fast one on CPU
    kv_write       write_kv and copy_positions, in place in a donated pool

Imports JAX, NumPy and jaxtyping only: nothing of the engine is known here.
"""

from .attention import BACKENDS, ragged_paged_attention
from .kv_write import NO_BLOCK, copy_positions, write_kv

__all__ = ["BACKENDS", "NO_BLOCK", "copy_positions", "ragged_paged_attention", "write_kv"]
