"""The one attention contract: ragged paged attention for mixed decode and prompt rows.

Every backend computes this function with this signature. A backend is chosen by name and never
replaced silently: what it cannot serve it refuses.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from jax import Array as JaxArray
from jaxtyping import Array, Float, Int

from . import xla
from .pallas import attention as pallas
from .triton import attention as triton_attention

AUTO = "auto"
"""Stands for the best backend of the platform; see `resolve_backend`."""


class Backend(Protocol):
    """The contract without its checks; see `ragged_paged_attention`."""

    def __call__(
        self,
        q: Float[Array, "T H D"],
        k_pool: Float[Array, "LN K S D"],
        v_pool: Float[Array, "LN K S D"],
        decode_tables: Int[Array, "R B"],
        decode_lengths: Int[Array, " R"],
        prompt_tables: Int[Array, "I B"],
        prompt_position: Int[Array, " I"],
        prompt_first_row: Int[Array, " I"],
        prompt_rows: Int[Array, " I"],
        first_block: int | Int[Array, ""],
        scale: float,
        *,
        architecture: str | None,
    ) -> Float[Array, "T H D"]: ...


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "xla": xla.ragged_paged_attention,
        "pallas": pallas.ragged_paged_attention,
        "pallas_fused": pallas.ragged_paged_attention_fused,
        "triton": triton_attention.ragged_paged_attention,
        "triton_fused": partial(triton_attention.ragged_paged_attention, is_fused=True),
    }
)


def resolve_backend(name: str, platform: str) -> str:
    """The name of the backend that `name` stands for on a platform, one of JAX's names for it.

    `auto` is `xla` on a CPU and `triton` on a GPU (not measured yet). Every other name stands
    for itself.

    Raises:
        ValueError: `auto` on a platform that has no default.
    """
    if name == AUTO:
        if platform == "cpu":
            return "xla"
        if platform in ("gpu", "cuda"):
            return "triton"
        raise ValueError(
            f"attention backend auto: expected the platform cpu or gpu, got {platform!r}; "
            "choose a backend by name"
        )
    return name


def ragged_paged_attention(
    q: Float[Array, "T H D"],
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    decode_tables: Int[Array, "R B"],
    decode_lengths: Int[Array, " R"],
    prompt_tables: Int[Array, "I B"],
    prompt_position: Int[Array, " I"],
    prompt_first_row: Int[Array, " I"],
    prompt_rows: Int[Array, " I"],
    first_block: int | Int[Array, ""],
    scale: float,
    *,
    backend: str = "xla",
    architecture: str | None = None,
) -> Float[Array, "T H D"]:
    """softmax(scale * q k^T) v per row, over the keys that the row sees (DESIGN section 4).

    Row r < R is a decode row iff decode_lengths[r] > 0. Prompt item i owns rows
    prompt_first_row[i] to prompt_first_row[i] + prompt_rows[i] - 1. No row belongs to both; a row
    of neither returns zeros. Query head h reads kv head h // (H / K). Keys and values of every
    row's own position are already in the pool. In every launch R = min(T, max_num_seqs) and
    I = min(T, W max_num_seqs), where a request may have W prompt items in one launch.

    Args:
        q: query rows after rotary positions, float32 or bfloat16.
        k_pool, v_pool: blocks of S positions, layer after layer, N blocks a layer; float32,
            float16 or bfloat16. Never sliced or converted whole, but for bfloat16 on XLA:CPU.
        decode_tables: ids in 0..N-1 of the blocks of the plane that decode row r reads, in order
            of position. Entries past the row's length may hold anything.
        decode_lengths: keys that decode row r sees, its own included (position + 1); 0: no row.
        prompt_tables: the same per prompt item.
        prompt_position: position of item i's first row; its row j sees keys
            0..prompt_position[i] + j.
        prompt_first_row: the batch row where item i begins.
        prompt_rows: number of rows of item i; 0: unused, its other entries may hold anything.
        first_block: id of the layer's block 0 in the pool, layer * N; added to ids here.
        scale: factor on the scores, usually D ** -0.5.
        backend: a name in `BACKENDS`.
        architecture: one of `ARCHITECTURES`, the GPU that the kernels' tiles are chosen for. None:
            the one that is traced for.

    Returns:
        One output per row, in q's dtype.

    Raises:
        ValueError: an unknown backend, shapes that do not fit together, or a dtype, head_dim,
            group of query heads or architecture that the backend does not serve.
        ImportError: something that the backend needs is not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(
            f"unknown attention backend: expected one of {', '.join(BACKENDS)}, got {backend!r}"
        )
    _check_heads(q, k_pool, v_pool)
    _check_metadata("decode_tables", decode_tables, q, decode_lengths=decode_lengths)
    _check_metadata(
        "prompt_tables",
        prompt_tables,
        q,
        prompt_position=prompt_position,
        prompt_first_row=prompt_first_row,
        prompt_rows=prompt_rows,
    )
    return BACKENDS[backend](
        q,
        k_pool,
        v_pool,
        decode_tables,
        decode_lengths,
        prompt_tables,
        prompt_position,
        prompt_first_row,
        prompt_rows,
        first_block,
        scale,
        architecture=architecture,
    )


def _check_heads(q: JaxArray, k_pool: JaxArray, v_pool: JaxArray) -> None:
    if q.ndim != 3 or k_pool.ndim != 4:
        raise ValueError(
            f"expected q [T H D] and k_pool [L*N K S D], got {q.shape} and {k_pool.shape}"
        )
    if (k_pool.shape, k_pool.dtype) != (v_pool.shape, v_pool.dtype):
        raise ValueError(
            f"expected v_pool like k_pool, {k_pool.shape} {k_pool.dtype}, "
            f"got {v_pool.shape} {v_pool.dtype}"
        )
    if q.shape[2] != k_pool.shape[3]:
        raise ValueError(
            f"expected one head_dim, got {q.shape[2]} in q and {k_pool.shape[3]} in the pools"
        )
    if q.shape[1] % k_pool.shape[1]:
        raise ValueError(
            f"expected query heads in whole groups per kv head, got {q.shape[1]} query heads "
            f"for {k_pool.shape[1]} kv heads"
        )


def _check_metadata(name: str, tables: JaxArray, q: JaxArray, **vectors: JaxArray) -> None:
    if tables.ndim != 2 or tables.shape[0] > q.shape[0]:
        raise ValueError(
            f"expected {name} of two axes with at most T = {q.shape[0]} rows, got {tables.shape}"
        )
    for vector_name, vector in vectors.items():
        if vector.shape != tables.shape[:1]:
            raise ValueError(
                f"expected {vector_name} with one entry per row of {name}, {tables.shape[:1]}, "
                f"got {vector.shape}"
            )
