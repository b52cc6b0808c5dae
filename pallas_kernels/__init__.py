"""Attention over a paged KV cache whose rows are decode tokens and prompt chunks, mixed.

Keys and values of all layers lie in one flat pool per kind, [L*N K S D]: N blocks a layer, S
positions a block, head-major, so that one head's part of a block is contiguous. A step writes its
rows' keys and values first, then attends; a token that exits early copies its position to the
planes it skipped.

    attention, attention_metadata
                   ragged_paged_attention: the one contract, its checks, its backends by name
    xla            backend "xla"
    kernel_backend, work_list
                   what the backends of kernels do alike: checks, sizes, prompt tiles from data
    pallas/        backend "pallas"
    triton/        backends "triton" and "triton_fused"
    kv_write       write_kv and copy_positions, in place in a donated pool
    architectures, rounding
                   the GPUs that kernels have tiles for; sizes as tiles take them

Each backend is there for a reason:

    "xla"            the reference, the fast one on a CPU, and the only one that promises a row's
                     bits
    "pallas"         kernels in JAX alone, which a CPU interprets without Triton; their lowering is
                     deprecated upstream
    "triton"         kernels that do not depend on that lowering: what `auto` is on a GPU
    "triton_fused"   one launch a layer fewer than `triton`, of no more registers; no GPU has yet
                     said which of the two is faster

Imports JAX, NumPy and jaxtyping only, and Triton where a kernel is launched: nothing of the engine
is known here.
"""

from .architectures import ARCHITECTURES, DEFAULT_ARCHITECTURE, SPILL_LIMIT, architecture_of
from .attention import AUTO, BACKENDS, ragged_paged_attention, resolve_backend
from .attention_metadata import AttentionMetadata
from .kv_write import NO_BLOCK, copy_positions, write_kv

__all__ = [
    "ARCHITECTURES",
    "AUTO",
    "BACKENDS",
    "DEFAULT_ARCHITECTURE",
    "NO_BLOCK",
    "SPILL_LIMIT",
    "AttentionMetadata",
    "architecture_of",
    "copy_positions",
    "ragged_paged_attention",
    "resolve_backend",
    "write_kv",
]
