"""What the engine, training and the reference ask of a model, of whichever family it is.

A row passes through it: `embed` once, `recurrent_pass` once a loop, and after a loop
`gate_logits` says how ready it is to leave and `logits` what its next token is. A model knows
nothing of caches, loops or requests: the caller decides how often a row passes, and hands in the
attention, which owns the keys and values.
"""

from typing import Any, Protocol, Self

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from looped.config import ModelConfig


class Attend(Protocol):
    """Causal attention of one layer, with the cache that it reads and writes.

    Args:
        layer: which layer asks, 0..L-1; traced where layers are stacked.
        query, key, value: this pass's rows after rotary positions, [T H D], [T K D], [T K D].
        cache: what the caller keeps keys and values in; a pytree.

    Returns:
        The attention output [T H D] and the cache with these rows' keys and values written.
    """

    def __call__(
        self,
        layer: int | Int[Array, ""],
        query: Float[Array, "T H D"],
        key: Float[Array, "T K D"],
        value: Float[Array, "T K D"],
        cache: Any,
    ) -> tuple[Float[Array, "T H D"], Any]: ...


class LoopedModel(Protocol):
    """A Flax NNX module whose parameters lie in memory as `parameters` reads them.

    Its tree has `layers`, a list or one stacked layer, and beside them what the family's
    `parameter_shapes` names.
    """

    config: ModelConfig
    """The model's shape."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        """Random weights of type `dtype`, float32 or bfloat16, drawn from `rngs`."""
        ...

    @classmethod
    def abstract(cls, config: ModelConfig, dtype: jnp.dtype, *, is_stacked: bool = False) -> Self:
        """The model with shapes and types in place of arrays."""
        ...

    @property
    def dtype(self) -> jnp.dtype:
        """Type of parameters and rows, float32 or bfloat16."""
        ...

    @property
    def is_stacked(self) -> bool:
        """Whether `layers` is one stacked layer rather than a list."""
        ...

    def stack_layers(self) -> None:
        """Stacks the layers, here and now; the arrays they had are DELETED."""
        ...

    def embed(self, token_ids: Int[Array, " T"]) -> Float[Array, "T E"]:
        """Rows as they enter the first loop."""
        ...

    def recurrent_pass(
        self,
        rows: Float[Array, "T E"],
        positions: Int[Array, " T"],
        attend: Attend,
        cache: Any,
    ) -> tuple[Float[Array, "T E"], Any]:
        """One loop: all layers, and whatever the family does between two loops.

        The rows that it returns enter the next loop, the gate and the LM head. A norm that stands
        before the head and not between loops belongs into `gate_logits` and `logits`.

        Args:
            rows: embeddings in the first loop, later what the previous loop returned.
            positions: each row's place in its sequence, the same in every loop.
            attend: attention over the plane of the KV cache that belongs to each row's loop.
            cache: handed through `attend` from layer to layer.
        """
        ...

    def gate_logits(self, rows: Float[Array, "T E"]) -> Float[Array, " T"]:
        """Exit gate's logit per row, float32; its sigmoid is the chance to leave after the loop.

        Without a gate (`config.has_gate`) it is -inf: no row ever leaves early.
        """
        ...

    def logits(self, rows: Float[Array, "T E"]) -> Float[Array, "T V"]:
        """Next-token logits per row, float32."""
        ...
