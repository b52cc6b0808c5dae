"""What a step must at least read, write and multiply, by formula: nothing here was measured."""

from dataclasses import dataclass

import jax.numpy as jnp

from looped.device.state import StateShape
from looped.sched import Rung


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Least work of one pass of a step (of `prefill`, one of its passes)."""

    weight_bytes: int
    """Every parameter that the step uses, read once."""
    activation_bytes: int
    """Inputs and outputs of the products, once each, and the rows that the state keeps."""
    attention_bytes: int
    """Cached keys and values that the rows see, read once per row or prompt item, and the rows."""
    num_flops: int
    """Multiplications and additions, attention included."""

    @property
    def bytes_outside_attention(self) -> int:
        return self.weight_bytes + self.activation_bytes

    @property
    def num_bytes(self) -> int:
        return self.bytes_outside_attention + self.attention_bytes

    def seconds(self, memory_bandwidth: float, flops: float) -> float:
        """Time that no launch can beat: the longer of moving and computing."""
        return max(self.num_bytes / memory_bandwidth, self.num_flops / flops)


def floor_of(shape: StateShape, rung: Rung, context: int) -> Floor:
    """The floor of a full bucket.

    Args:
        shape: sizes of model and state.
        rung: launch kind and rows. A recurrent launch has decode rows up to max_num_seqs and
            prompt rows behind them, in items of chunk_size; a prefill launch has prompt rows.
        context: keys that every decode row sees, and every prompt item's last row.
    """
    kind, num_rows = rung
    if not kind.runs_layers:
        return _head_floor(shape, num_rows)
    num_decode = min(num_rows, shape.max_num_seqs) if kind.carries_decode else 0
    return _pass_floor(shape, num_decode, num_rows - num_decode, context)


def _pass_floor(shape: StateShape, num_decode: int, num_prompt: int, context: int) -> Floor:
    config, num_rows = shape.config, num_decode + num_prompt
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    size, kv_size = jnp.dtype(shape.dtype).itemsize, jnp.dtype(shape.kv_dtype).itemsize

    matrices = config.num_layers * width * (2 * queries + 2 * keys + 3 * inner)
    norms = config.num_layers * 4 * width + width
    products = (width + queries + 2 * keys) + (queries + width) + (width + 2 * inner)
    products += inner + width
    row_values = config.num_layers * products + 3 * width  # embedded, kept, normed at the end
    kv_values = config.num_layers * 2 * keys

    num_items = -(-num_prompt // shape.chunk_size)
    num_keys = (num_decode + num_items) * context
    # A prompt item's rows see one key fewer each, from the last row backwards.
    hidden_keys = num_items * shape.chunk_size * (shape.chunk_size - 1) // 2
    num_pairs = num_decode * context + max(0, num_prompt * context - hidden_keys)
    return Floor(
        weight_bytes=(matrices + norms) * size,
        activation_bytes=num_rows * (row_values * size + kv_values * (size + kv_size)),
        attention_bytes=config.num_layers * (num_keys * 2 * keys * kv_size)
        + config.num_layers * num_rows * 2 * queries * size,
        num_flops=2 * num_rows * matrices + config.num_layers * num_pairs * 4 * queries,
    )


def _head_floor(shape: StateShape, num_rows: int) -> Floor:
    config, size = shape.config, jnp.dtype(shape.dtype).itemsize
    values = config.vocab_size * config.hidden_size
    logits = 2 * config.vocab_size * 4  # written and read once, float32
    return Floor(
        weight_bytes=values * size,
        activation_bytes=num_rows * (config.hidden_size * size + logits),
        attention_bytes=0,
        num_flops=2 * num_rows * values,
    )
