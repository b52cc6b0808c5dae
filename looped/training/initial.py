"""First weights of a model that is pre-trained."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped.config import ModelConfig
from looped.models import EMBEDDING, GATE_BIAS, GATE_WEIGHT, family_of
from looped.models.looped_model import LoopedModel

BRANCH_SCALE = 0.5
"""Of the norms behind attention and MLP: how much each adds to a row, whose own scale is 1."""
FIRST_GATE_BIAS = -1.0
"""A hazard of 0.27 after every loop: near a uniform distribution over four depths."""


def initial_model(config: ModelConfig, seed: int) -> LoopedModel:
    """Float32 weights: embedding z, matrices z / sqrt(inputs), norms 1, those of branches 0.5.

    A row enters the first loop with the scale that the final norm gives it for the next ones, so
    that its token is not drowned by what the layers add. The gate starts without weights.
    """
    graph, state = nnx.split(family_of(config).model_class().abstract(config, jnp.float32))
    keys = nnx.Rngs(seed)
    flat = [
        (path, leaf.replace(_first_value(".".join(map(str, path)), leaf.shape, keys.params())))
        for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(flat))


def _first_value(name: str, shape: tuple[int, ...], key: Array) -> Float[Array, "..."]:
    if name in (GATE_WEIGHT, GATE_BIAS):
        return jnp.full(shape, FIRST_GATE_BIAS if name == GATE_BIAS else 0.0, jnp.float32)
    if name.endswith("norm.weight"):
        scale = BRANCH_SCALE if name.endswith("output_norm.weight") else 1.0
        return jnp.full(shape, scale, jnp.float32)
    values = jax.random.normal(key, shape, jnp.float32)
    return values if name == EMBEDDING else values * shape[1] ** -0.5
