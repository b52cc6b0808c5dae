"""The model's `attend` in a pass: keys and values into the paged pool, then attention over it."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int

from looped.device.state import StateShape
from looped.models.scopes import ATTENTION, KV_WRITE
from looped.pallas_kernels import AttentionMetadata, ragged_paged_attention, write_kv

Pools = tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]


@dataclass(frozen=True)
class PagedAttention:
    """The model's `attend` over the flat pool: write these rows' keys and values, then attend."""

    shape: StateShape
    backend: str
    write_blocks: Int[Array, " T"]
    write_offsets: Int[Array, " T"]
    metadata: AttentionMetadata

    def __call__(
        self,
        layer: int | Int[Array, ""],
        query: Float[Array, "T H D"],
        key: Float[Array, "T K D"],
        value: Float[Array, "T K D"],
        cache: Pools,
    ) -> tuple[Float[Array, "T H D"], Pools]:
        first_block = layer * self.shape.num_blocks
        with jax.named_scope(KV_WRITE):
            pools = write_kv(*cache, key, value, self.write_blocks, self.write_offsets, first_block)
        with jax.named_scope(ATTENTION):
            mixed = ragged_paged_attention(
                query,
                *pools,
                self.metadata,
                first_block,
                self.shape.config.head_dim**-0.5,
                backend=self.backend,
            )
        return mixed, pools
