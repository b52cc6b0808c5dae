"""Ouro: a decoder whose L layers run P times per token (ByteDance).

"Scaling Latent Reasoning via Looped Language Models", https://arxiv.org/abs/2510.25741.

Rows are single tokens in any order and at any loop; a prompt is simply many rows. Weights lie as
[out, in], the layout of the checkpoint, because XLA:CPU multiplies by it 9 to 25 times faster in
bfloat16 than by its transpose. Query, key and value share one matrix, as do gate and up: fewer
and larger products on every platform.
"""

from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from looped.config import ModelConfig

from .layers import run_layers, stack_layers, stacked_shapes
from .looped_model import Attend
from .scopes import EMBED, GATE, LM_HEAD, MLP


class OuroModel(nnx.Module):
    """Embedding, L layers run as one recurrent pass, exit gate and LM head.

    Args:
        config: the model's shape.
        dtype: type of parameters and activations, float32 or bfloat16. Norm variances, rotary
            angles, gate and logits are float32 in either.
        rngs: source of the random initial weights.
    """

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype=dtype, rngs=rngs)
        self.layers: nnx.List[Layer] | Layer = nnx.List(
            [Layer(config, dtype=dtype, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.final_norm = RMSNorm(config, dtype=dtype)
        self.exit_gate = Linear(config.hidden_size, 1, has_bias=True, dtype=dtype, rngs=rngs)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, dtype=dtype, rngs=rngs)

    @classmethod
    def abstract(cls, config: ModelConfig, dtype: jnp.dtype, *, is_stacked: bool = False) -> Self:
        """The model with shapes and types in place of arrays."""
        model: Self = nnx.eval_shape(lambda: cls(config, dtype=dtype, rngs=nnx.Rngs(0)))
        if is_stacked and isinstance(model.layers, nnx.List):
            model.layers = stacked_shapes(model.layers)
        return model

    @property
    def dtype(self) -> jnp.dtype:
        """Type of parameters and rows."""
        return self.embedding.weight[...].dtype

    @property
    def is_stacked(self) -> bool:
        """Whether `layers` is one stacked layer rather than a list."""
        return isinstance(self.layers, Layer)

    def stack_layers(self) -> None:
        """Stacks the layers, here and now; the arrays they had are DELETED."""
        if isinstance(self.layers, nnx.List):
            self.layers = stack_layers(self.layers)

    def embed(self, token_ids: Int[Array, " T"]) -> Float[Array, "T E"]:
        """Rows as they enter the first loop."""
        with jax.named_scope(EMBED):
            return self.embedding(token_ids)

    def recurrent_pass(
        self,
        rows: Float[Array, "T E"],
        positions: Int[Array, " T"],
        attend: Attend,
        cache: Any,
    ) -> tuple[Float[Array, "T E"], Any]:
        """One loop: all layers, then the final norm.

        The normed rows are the state: they enter the next loop, the gate and the LM head, and
        nothing follows the last loop.

        Args:
            rows: embeddings in the first loop, later what the previous loop returned.
            positions: each row's place in its sequence, the same in every loop.
            attend: attention over the plane of the KV cache that belongs to each row's loop.
            cache: handed through `attend` from layer to layer.
        """
        angles = rotary_angles(positions, self.config.head_dim, self.config.rope_theta)

        def run_layer(
            layer: Layer, index: int | Int[Array, ""], carry: tuple[Array, Any]
        ) -> tuple[Array, Any]:
            rows, cache = carry
            return layer(rows, angles, index, attend, cache)

        rows, cache = run_layers(self.layers, run_layer, (rows, cache))
        return self.final_norm(rows), cache

    def gate_logits(self, rows: Float[Array, "T E"]) -> Float[Array, " T"]:
        """Exit gate's logit per row, float32; its sigmoid is the chance to leave after the loop."""
        with jax.named_scope(GATE):
            return self.exit_gate(rows, out_dtype=jnp.float32)[:, 0]

    def logits(self, rows: Float[Array, "T E"]) -> Float[Array, "T V"]:
        """Next-token logits per row, float32."""
        with jax.named_scope(LM_HEAD):
            return self.lm_head(rows, out_dtype=jnp.float32)


class Layer(nnx.Module):
    """Attention and MLP, each between two norms: x + N2(attn(N1(x))), then a + N4(mlp(N3(a)))."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.attention_input_norm = RMSNorm(config, dtype=dtype)
        self.attention = Attention(config, dtype=dtype, rngs=rngs)
        self.attention_output_norm = RMSNorm(config, dtype=dtype)
        self.mlp_input_norm = RMSNorm(config, dtype=dtype)
        self.mlp = GatedMLP(config, dtype=dtype, rngs=rngs)
        self.mlp_output_norm = RMSNorm(config, dtype=dtype)

    def __call__(
        self,
        rows: Float[Array, "T E"],
        angles: Float[Array, "T half"],
        index: int | Int[Array, ""],
        attend: Attend,
        cache: Any,
    ) -> tuple[Float[Array, "T E"], Any]:
        mixed, cache = self.attention(self.attention_input_norm(rows), angles, index, attend, cache)
        rows = rows + self.attention_output_norm(mixed)
        return rows + self.mlp_output_norm(self.mlp(self.mlp_input_norm(rows))), cache


class Attention(nnx.Module):
    """Projections and rotary positions; what attends to what is the caller's `attend`."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        inner = config.num_heads * config.head_dim
        fused = inner + 2 * config.num_kv_heads * config.head_dim
        self.query_key_value = Linear(config.hidden_size, fused, dtype=dtype, rngs=rngs)
        self.output = Linear(inner, config.hidden_size, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        rows: Float[Array, "T E"],
        angles: Float[Array, "T half"],
        index: int | Int[Array, ""],
        attend: Attend,
        cache: Any,
    ) -> tuple[Float[Array, "T E"], Any]:
        heads = self.query_key_value(rows).reshape(rows.shape[0], -1, self.head_dim)
        query, key, value = jnp.split(
            heads, [self.num_heads, self.num_heads + self.num_kv_heads], axis=1
        )
        mixed, cache = attend(index, rotate(query, angles), rotate(key, angles), value, cache)
        return self.output(mixed.reshape(rows.shape[0], -1).astype(rows.dtype)), cache


class GatedMLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype, rngs: nnx.Rngs) -> None:
        inner = config.intermediate_size
        self.gate_up = Linear(config.hidden_size, 2 * inner, dtype=dtype, rngs=rngs)
        self.down = Linear(inner, config.hidden_size, dtype=dtype, rngs=rngs)

    def __call__(self, rows: Float[Array, "T E"]) -> Float[Array, "T E"]:
        with jax.named_scope(MLP):
            gate, up = jnp.split(self.gate_up(rows), 2, axis=-1)
            return self.down(jax.nn.silu(gate) * up)


class Embedding(nnx.Module):
    """A row of the table per token id."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: jnp.dtype, rngs: nnx.Rngs
    ) -> None:
        self.weight = nnx.Param(_random_weight(rngs, (vocab_size, hidden_size), dtype))

    def __call__(self, token_ids: Int[Array, " T"]) -> Float[Array, "T E"]:
        return self.weight[...][token_ids]


class Linear(nnx.Module):
    """x @ weight.T with a weight of [out, in], accumulated in float32."""

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        has_bias: bool = False,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ) -> None:
        self.weight = nnx.Param(_random_weight(rngs, (out_size, in_size), dtype))
        self.bias = nnx.Param(jnp.zeros((out_size,), dtype)) if has_bias else None

    def __call__(
        self, rows: Float[Array, "T in"], *, out_dtype: jnp.dtype | None = None
    ) -> Float[Array, "T out"]:
        # Float32 means float32: a GPU's default for it is TF32, which breaks the goldens.
        precision = lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None
        out = lax.dot_general(
            rows,
            self.weight[...],
            (((1,), (1,)), ((), ())),
            precision=precision,
            preferred_element_type=jnp.float32,
        )
        if self.bias is not None:
            out = out + self.bias[...].astype(jnp.float32)
        return out.astype(out_dtype or rows.dtype)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) in float32, cast to the activations' type, times the weight."""

    def __init__(self, config: ModelConfig, *, dtype: jnp.dtype) -> None:
        self.epsilon = config.rms_norm_eps
        self.weight = nnx.Param(jnp.ones((config.hidden_size,), dtype))

    def __call__(self, rows: Float[Array, "T E"]) -> Float[Array, "T E"]:
        wide = rows.astype(jnp.float32)
        variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * lax.rsqrt(variance + self.epsilon)).astype(rows.dtype) * self.weight[...]


def rotary_angles(
    positions: Int[Array, " T"], head_dim: int, theta: float
) -> Float[Array, "T half"]:
    """position * theta^(-2i / D) for i in 0..D/2-1, in float32: bfloat16 is off by whole turns."""
    exponents = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    return positions.astype(jnp.float32)[:, None] * (1.0 / theta**exponents)


def rotate(heads: Float[Array, "T H D"], angles: Float[Array, "T half"]) -> Float[Array, "T H D"]:
    """Rotary positions in the rotate-half form: dimension i is paired with i + D/2."""
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(heads.dtype)


def _random_weight(rngs: nnx.Rngs, shape: tuple[int, int], dtype: jnp.dtype) -> Array:
    return (0.02 * jax.random.normal(rngs.params(), shape, jnp.float32)).astype(dtype)
