"""Everything the device keeps between launches, as one pytree that every step donates."""

from dataclasses import dataclass
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt8

from looped.config import ModelConfig

from .pytree import register_pytree
from .request_table import RowOptions, RowProgress, num_columns

TRACE_WORD = 4
"""Recorded depths in a word of an upload: a byte each."""


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

    @property
    def trace_width(self) -> int:
        """Recorded depths of a slot: at least max_model_len, in whole words."""
        return -(-self.max_model_len // TRACE_WORD) * TRACE_WORD

    @property
    def request_table_bytes(self) -> int:
        """Bytes of what is kept of each request: tables, options, progress, trace and gates."""
        num_loops = self.config.num_loops
        words = num_columns(RowProgress) + num_columns(RowOptions)
        words += num_loops * self.blocks_per_seq + num_loops + 1
        return self.max_num_seqs * (4 * words + self.trace_width)


@register_pytree
class DeviceState:
    """DONATED to every compiled step, which updates it in place and returns it."""

    key_pool: Float[Array, "LN K S D"]
    """Keys, head-major blocks; layer l's block b lies at l * N + b. Written by passes and heads."""
    value_pool: Float[Array, "LN K S D"]
    """Values, laid out as the keys."""
    hidden: Float[Array, "slots E"]
    """Normed row of each request after its last loop. Written by passes, read by heads."""
    prompt_hidden: Float[Array, "places C E"]
    """Rows of prompt items between two depths; disjoint from the decode slots."""
    progress: Int[Array, "slots C"]
    """`RowProgress` of each request. Written at admission, by passes and by heads."""
    options: Int[Array, "slots C"]
    """`RowOptions` of each request. Written at admission."""
    block_tables: Int[Array, "slots P B"]
    """Blocks of each request, by plane. Written at admission, and when they grow."""
    traces: UInt8[Array, "slots T"]
    """Recorded depths of each output token. Written at admission."""
    gates: Float[Array, "slots P"]
    """sigmoid of the gate after each loop of the newest token. Written by passes."""
    head_slots: Int[Array, " slots"]
    """Who may finish in the newest launch, in the order of its record; max_num_seqs is nobody."""
    token_marks: Int[Array, "slots V"]
    """What is known of each token (`logit_edits`): in the prompt, a stop id, times in the output.
    Written at admission and by heads, for requests with edits; otherwise stale."""
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
            progress=jnp.zeros((slots, num_columns(RowProgress)), jnp.int32),
            options=jnp.zeros((slots, num_columns(RowOptions)), jnp.int32),
            block_tables=jnp.zeros((slots, config.num_loops, shape.blocks_per_seq), jnp.int32),
            traces=jnp.zeros((slots, shape.trace_width), jnp.uint8),
            gates=jnp.zeros((slots, config.num_loops), jnp.float32),
            head_slots=jnp.full((slots,), slots, jnp.int32),
            token_marks=jnp.zeros((slots, config.vocab_size), jnp.int32),
            logit_bias=jnp.zeros((slots, config.vocab_size), jnp.float32),
        )
