"""The one attention contract: ragged paged attention for mixed decode and prompt rows.

Every backend computes this function with this signature. A backend is chosen by name and never
replaced silently: what it cannot serve it refuses.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from jax import Array as JaxArray
from jaxtyping import Array, Float, Int

from . import xla
from .attention_metadata import AttentionMetadata
from .pallas.attention import PallasBackend
from .triton.attention import TritonBackend

AUTO = "auto"
"""Stands for the best backend of the platform; see `resolve_backend`."""


class Backend(Protocol):
    """The contract without its checks; see `ragged_paged_attention`."""

    def __call__(
        self,
        q: Float[Array, "T H D"],
        k_pool: Float[Array, "LN K S D"],
        v_pool: Float[Array, "LN K S D"],
        metadata: AttentionMetadata,
        first_block: int | Int[Array, ""],
        scale: float,
        *,
        architecture: str | None,
    ) -> Float[Array, "T H D"]: ...


BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        "xla": xla.ragged_paged_attention,
        "pallas": PallasBackend(name="pallas"),
        "triton": TritonBackend(name="triton", is_fused=False),
        "triton_fused": TritonBackend(name="triton_fused", is_fused=True),
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
    metadata: AttentionMetadata,
    first_block: int | Int[Array, ""],
    scale: float,
    *,
    backend: str = "xla",
    architecture: str | None = None,
) -> Float[Array, "T H D"]:
    """softmax(scale * q k^T) v per row, over the keys that the row sees.

    `metadata` says which rows are decode rows, which belong to a prompt item, and which keys each
    sees; a row of neither returns zeros. Query head h reads kv head h // (H / K). Keys and values
    of every row's own position are already in the pool.

    Args:
        q: query rows after rotary positions, float32 or bfloat16.
        k_pool, v_pool: blocks of S positions, layer after layer, N blocks a layer; float32,
            float16 or bfloat16. Never sliced or converted whole, but for bfloat16 on XLA:CPU.
        metadata: decode rows and prompt items, with the tables of their blocks.
        first_block: id of the layer's block 0 in the pool, layer * N; added to the
            tables' ids here.
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
    metadata.check(q.shape[0])
    return BACKENDS[backend](
        q, k_pool, v_pool, metadata, first_block, scale, architecture=architecture
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
