"""The parameter tree on disk, and how it becomes a model in memory.

On disk there is one layout for all platforms: one entry per tensor, per layer, [out, in], named
below. Fusing happens here, at load, so that a checkpoint never depends on where it will run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from looped.config import ModelConfig

from .ouro import OuroModel

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


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the tree on disk, in the order in which it is written."""
    width, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attention_input_norm.weight": (width,),
        "attention.query.weight": (query, width),
        "attention.key.weight": (key, width),
        "attention.value.weight": (key, width),
        "attention.output.weight": (width, query),
        "attention_output_norm.weight": (width,),
        "mlp_input_norm.weight": (width,),
        "mlp.gate.weight": (inner, width),
        "mlp.up.weight": (inner, width),
        "mlp.down.weight": (width, inner),
        "mlp_output_norm.weight": (width,),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocab_size, width)}
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {
        "final_norm.weight": (width,),
        "exit_gate.weight": (1, width),
        "exit_gate.bias": (1,),
        "lm_head.weight": (config.vocab_size, width),
    }


def load_model(config: ModelConfig, read: ParameterReader, dtype: jnp.dtype) -> OuroModel:
    """Builds the model from a tree on disk, tensor by tensor, without random weights in between.

    Args:
        config: the model's shape; `read` must serve every name of `parameter_shapes(config)`.
        read: gives a stored tensor of any float type.
        dtype: type of the parameters in memory, float32 or bfloat16.
    """
    graph, state = nnx.split(OuroModel.abstract(config, dtype))
    values = {
        path: jnp.asarray(_read_fused(path, read), dtype=dtype)
        for path in (_dotted(path) for path, _ in nnx.to_flat_state(state))
    }
    flat = [(path, leaf.replace(values[_dotted(path)])) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graph, nnx.from_flat_state(flat))


def parameter_arrays(model: OuroModel) -> Iterator[tuple[str, jax.Array]]:
    """Every parameter in memory under its dotted name, fused ones as they are."""
    for path, leaf in nnx.to_flat_state(nnx.state(model)):
        yield _dotted(path), leaf[...]


def stored_parameters(model: OuroModel) -> Iterator[tuple[str, jax.Array]]:
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
