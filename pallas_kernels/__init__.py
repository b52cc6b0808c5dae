"""Attention over a paged KV cache whose rows are decode tokens and prompt chunks, mixed.

Keys and values of all layers lie in one flat pool per kind, [L*N K S D]: N blocks a layer, S
positions a block, head-major, so that one head's part of a block is contiguous. A step writes its
rows' keys and values first, then attends; a token that exits early copies its position to the
planes it skipped.

    attention      ragged_paged_attention: the one contract, its checks, its backends by name
    xla            backend "xla": the reference, and the fast one on CPU
    pallas, pallas_{tile,decode,prompt,launch}, tiles
                    backends "pallas" and "pallas_fused": Pallas kernels on the Triton lowering
    triton_attention, triton_kernels, triton_tiles
                   backends "triton" and "triton_fused": hand-written kernels for NVIDIA GPUs
    pallas_write, triton_write
                    write_kv as one kernel
    jax_triton_adapter, triton_report
                   calls a Triton kernel; compiles all of them for a GPU that is not there
    kv_write, no_block
                   write_kv by backend and copy_positions, in place in a donated pool
    work_list      which program of a launch works for which prompt item

Imports JAX, NumPy and jaxtyping only, and Triton where a kernel is launched: nothing of the engine
is known here.
"""

from .architectures import ARCHITECTURES, DEFAULT_ARCHITECTURE, SPILL_LIMIT, architecture_of
from .attention import AUTO, BACKENDS, ragged_paged_attention, resolve_backend
from .kv_write import WRITERS, copy_positions, write_kv
from .no_block import NO_BLOCK

__all__ = [
    "ARCHITECTURES",
    "AUTO",
    "BACKENDS",
    "DEFAULT_ARCHITECTURE",
    "NO_BLOCK",
    "SPILL_LIMIT",
    "WRITERS",
    "architecture_of",
    "copy_positions",
    "ragged_paged_attention",
    "resolve_backend",
    "write_kv",
]
