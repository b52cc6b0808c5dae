"""What every backend of hand-written kernels does around its launches.

`KernelBackend` turns a call of the contract into a `Problem`, which is what a launch is compiled
for, and `Operands`, which are data; what no kernel serves it refuses when the call is traced. A
backend adds its tiles and its launches.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .architectures import architecture_here
from .attention_metadata import AttentionMetadata
from .rounding import padded_dim

DTYPES = ("float32", "float16", "bfloat16")

MAX_HEAD_DIM = 256

T = TypeVar("T")
"""A backend's own configuration of tiles."""


@dataclass(frozen=True, kw_only=True)
class Problem(Generic[T]):
    """What a call is compiled for: the sizes of its operands, and the tiles chosen for them."""

    num_rows: int
    """T, rows of the batch."""
    num_decode: int
    """R, the first rows, which may be decode rows."""
    num_items: int
    """I, prompt items."""
    table_width: int
    """B, blocks of a table."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    tile_dtype: Any
    """Dtype of queries, keys, values and weights in the products; sums are float32."""
    architecture: str
    tiles: T

    @property
    def group_size(self) -> int:
        """Query heads per kv head."""
        return self.num_heads // self.num_kv_heads

    @property
    def padded_dim(self) -> int:
        return padded_dim(self.head_dim)


class Operands(NamedTuple):
    """The arrays of a call. Kernels take whole arrays, so the layer's first block is one, too."""

    q: Float[Array, "T H D"]
    k_pool: Float[Array, "LN K S D"]
    v_pool: Float[Array, "LN K S D"]
    metadata: AttentionMetadata
    first_block: Int[Array, " 1"]


@dataclass(frozen=True, kw_only=True)
class KernelBackend(ABC, Generic[T]):
    """A backend by its name in `attention.BACKENDS`; called, it is the contract."""

    name: str

    takes_two_dtypes: ClassVar[bool]
    """Whether queries and pools may differ in dtype."""

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
    ) -> Float[Array, "T H D"]:
        """The contract of `attention.ragged_paged_attention`.

        Args:
            architecture: one of `ARCHITECTURES`; None: the one that is traced for.

        Raises:
            ValueError: a dtype, head_dim, group of query heads or GPU without a kernel.
            ImportError: something that the backend needs is not installed.
        """
        self._check_types(q, k_pool)
        architecture = architecture or self.architecture_here()
        # One dtype for a tile's products: what both sides have, or float32 where they differ.
        tile_dtype = q.dtype if q.dtype == k_pool.dtype else jnp.dtype(jnp.float32)
        num_rows, num_heads, head_dim = q.shape
        _, num_kv_heads, block_size, _ = k_pool.shape
        problem = Problem(
            num_rows=num_rows,
            num_decode=metadata.decode_lengths.shape[0],
            num_items=metadata.prompt_rows.shape[0],
            table_width=metadata.prompt_tables.shape[1],
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=scale,
            tile_dtype=tile_dtype,
            architecture=architecture,
            tiles=self.tiles_for(architecture, tile_dtype.name, head_dim),
        )
        base = jnp.reshape(jnp.asarray(first_block, jnp.int32), (1,))
        return self.attend(problem, Operands(q, k_pool, v_pool, metadata, base))

    def architecture_here(self) -> str:
        """The GPU that is traced for.

        Raises:
            ValueError: one that no kernel has tiles for.
        """
        return architecture_here()

    @abstractmethod
    def tiles_for(self, architecture: str, dtype: str, head_dim: int) -> T:
        """Tiles for products of that dtype.

        Raises:
            ValueError: no tiles for that architecture.
        """

    @abstractmethod
    def attend(self, problem: Problem[T], operands: Operands) -> Float[Array, "T H D"]:
        """Every launch of one call, and what is left to do behind them.

        Raises:
            ValueError: a group of query heads without a kernel.
            ImportError: something that the backend needs is not installed.
        """

    def _check_types(self, q: Array, k_pool: Array) -> None:
        names = {q.dtype.name, k_pool.dtype.name}
        if names - set(DTYPES) or (len(names) > 1 and not self.takes_two_dtypes):
            one = "" if self.takes_two_dtypes else "one dtype, "
            raise ValueError(
                f"attention backend {self.name} takes queries and pools of {one}"
                f"{', '.join(DTYPES)}; got {q.dtype.name} queries and a {k_pool.dtype.name} pool; "
                "change a dtype, or choose backend xla"
            )
        if q.shape[2] > MAX_HEAD_DIM:
            raise ValueError(
                f"attention backend {self.name} takes head_dim up to {MAX_HEAD_DIM}, "
                f"got {q.shape[2]}; choose backend xla"
            )
