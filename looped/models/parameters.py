"""The parameter tree on disk, and how it becomes a model in memory.

On disk there is one layout for all platforms: one entry per tensor, per layer, [out, in], named
by the family. Fusing happens here, at load: a checkpoint never depends on where it will run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from looped.config import ModelConfig

from .looped_model import LoopedModel
from .registry import family_of, parameter_shapes

ParameterReader = Callable[[str], np.ndarray[Any, Any]]
"""Gives the tensor of one name of `parameter_shapes`, as it is stored."""

# Matrices in memory that hold several of the disk's, stacked along the output axis in this order.
FUSED = {
    "attention.query_key_value.weight": (
        "attention.query.weight",
        "attention.key.weight",
        "attention.value.weight",
    ),
    "mlp.gate_up.weight": ("mlp.gate.weight", "mlp.up.weight"),
}


def load_model(config: ModelConfig, read: ParameterReader, dtype: jnp.dtype) -> LoopedModel:
    """Builds the model from a tree on disk, tensor by tensor, without random weights in between.

    Args:
        config: the model's shape; `read` must serve every name of `parameter_shapes(config)`.
        read: gives a stored tensor of any float type.
        dtype: type of the parameters in memory, float32 or bfloat16.
    """
    graph, state = nnx.split(family_of(config).model_class().abstract(config, dtype))
    values = {
        path: jnp.asarray(_read_fused(path, read), dtype=dtype)
        for path in (_dotted(path) for path, _ in nnx.to_flat_state(state))
    }
    flat = [(path, leaf.replace(values[_dotted(path)])) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(flat))


def parameter_arrays(model: LoopedModel) -> Iterator[tuple[str, jax.Array]]:
    """Every parameter in memory under its dotted name, fused ones as they are."""
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        yield _dotted(path), leaf[...]


def stored_parameters(model: LoopedModel) -> Iterator[tuple[str, jax.Array]]:
    """Every tensor of the tree on disk, by name, out of a model whose layers are of either form."""
    shapes = parameter_shapes(model.config)
    for path, array in parameter_arrays(model):
        if model.is_stacked and path.startswith("layers."):
            name = path.removeprefix("layers.")
            per_layer = [(f"layers.{index}.{name}", part) for index, part in enumerate(array)]
        else:
            per_layer = [(path, array)]
        for name, fused in per_layer:
            start = 0
            for part in _parts(name):
                end = start + shapes[part][0]
                yield part, fused[start:end]
                start = end


def _parts(name: str) -> list[str]:
    """Names on disk of what is one parameter in memory."""
    for fused, parts in FUSED.items():
        if name.endswith(fused):
            prefix = name.removesuffix(fused)
            return [prefix + part for part in parts]
    return [name]


def _read_fused(name: str, read: ParameterReader) -> np.ndarray[Any, Any]:
    parts = _parts(name)
    return np.concatenate([read(part) for part in parts]) if len(parts) > 1 else read(name)


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(key) for key in path)
