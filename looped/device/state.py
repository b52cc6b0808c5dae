"""Everything the device keeps between launches, as one pytree that every step donates."""

from dataclasses import dataclass
from typing import Any, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from looped.config import ModelConfig

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def register_pytree(cls: type[T]) -> type[T]:
    """Makes a class of annotated fields a frozen dataclass that JAX sees as a pytree."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True, kw_only=True)(cls))


@dataclass(frozen=True, kw_only=True)
class StateShape:
    """Sizes that fix the shapes of device state, and with them every executable."""

    config: ModelConfig
    dtype: Any
    """Type of hidden rows."""
    kv_dtype: Any
    """Type of cached keys and values."""
    num_blocks: int
    """N, KV blocks a layer, over all planes."""
    block_size: int
    """S, positions in a block."""
    max_num_seqs: int
    """Slots: requests that may be active at once."""
    chunk_size: int
    """Most rows of a prompt item."""
    max_model_len: int
    """Longest sequence; block tables are as wide."""
    max_window: int = 1
    """W, prompt items of a request that may be under way at once."""

    @property
    def num_prompt_places(self) -> int:
        """Places in the prompt pool, one for each prompt item under way."""
        return self.max_window * self.max_num_seqs

    @property
    def blocks_per_seq(self) -> int:
        """B, width of a block table: blocks of one plane that the longest sequence fills."""
        return -(-self.max_model_len // self.block_size)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: K and V of all layers at `block_size` positions of one plane."""
        values = self.config.kv_values_per_token() // self.config.num_loops
        return values * self.block_size * jnp.dtype(self.kv_dtype).itemsize

    @property
    def kv_bytes(self) -> int:
        return self.block_bytes * self.num_blocks

    @property
    def prompt_state_bytes(self) -> int:
        """Bytes of hidden rows: decode slots and the prompt pool."""
        rows = self.max_num_seqs + self.num_prompt_places * self.chunk_size
        return rows * self.config.hidden_size * jnp.dtype(self.dtype).itemsize

    @property
    def sampling_state_bytes(self) -> int:
        """Bytes of token marks and logit biases, a row of each per slot."""
        return self.max_num_seqs * self.config.vocab_size * 8


@register_pytree
class DeviceState:
    """DONATED to every compiled step, which updates it in place and returns it."""

    key_pool: Float[Array, "LN K S D"]
    """Keys, head-major blocks; layer l's block b lies at l * N + b. Written by passes and codas."""
    value_pool: Float[Array, "LN K S D"]
    """Values, laid out as the keys."""
    hidden: Float[Array, "slots E"]
    """Normed row of each request after its last loop. Written by passes, read by codas."""
    prompt_hidden: Float[Array, "places C E"]
    """Rows of prompt items between two depths; disjoint from the decode slots."""
    last_token: Int[Array, " slots"]
    """Newest token of each request; embedded by its first pass. Written by codas."""
    survival: Float[Array, " slots"]
    """Product of 1 - sigmoid(gate) over the loops of the newest token. Written by passes."""
    token_marks: Int[Array, "slots V"]
    """What is known of each token (`logit_edits`): in the prompt, a stop id, times in the output.
    Written at admission and by codas, for requests with edits; otherwise stale."""
    logit_bias: Float[Array, "slots V"]
    """Added to the logits, float32. Written at admission, as the marks."""

    @classmethod
    def zeros(cls, shape: StateShape) -> Self:
        """Fresh state on the default device."""
        config = shape.config
        pool = (
            config.num_layers * shape.num_blocks,
            config.num_kv_heads,
            shape.block_size,
            config.head_dim,
        )
        slots, width = shape.max_num_seqs, config.hidden_size
        return cls(
            key_pool=jnp.zeros(pool, shape.kv_dtype),
            value_pool=jnp.zeros(pool, shape.kv_dtype),
            hidden=jnp.zeros((slots, width), shape.dtype),
            prompt_hidden=jnp.zeros(
                (shape.num_prompt_places, shape.chunk_size, width), shape.dtype
            ),
            last_token=jnp.zeros((slots,), jnp.int32),
            survival=jnp.zeros((slots,), jnp.float32),
            token_marks=jnp.zeros((slots, config.vocab_size), jnp.int32),
            logit_bias=jnp.zeros((slots, config.vocab_size), jnp.float32),
        )
