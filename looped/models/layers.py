"""The stack of L layers as a list or as one: what a compiled step repeats, and what it loops over.

A list is unrolled: the step holds every layer's code, and every layer's parameters are arrays of
their own. A stacked layer has the parameters of all along a leading axis [L ...]: the step holds
one layer's code in a `lax.scan`, and a call takes few arrays. Whatever layers carry along, the
KV pools above all, is the scan's carry and is never scanned over: that would copy it.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Int

from .scopes import LAYERS, layer_scope

LayerType = TypeVar("LayerType", bound=nnx.Module)
Carry = TypeVar("Carry")


def run_layers(
    layers: "nnx.List[LayerType] | LayerType",
    run_layer: Callable[[LayerType, int | Int[Array, ""], Carry], Carry],
    carry: Carry,
) -> Carry:
    """Runs layer 0 to L-1 on what the layer before returned.

    Args:
        layers: a list, or one stacked layer.
        run_layer: takes a layer, its index (a number, or a traced one in a scan) and the carry.
        carry: a pytree whose shapes and types no layer changes.
    """
    with jax.named_scope(LAYERS):
        if isinstance(layers, nnx.List):
            for index, layer in enumerate(layers):
                with jax.named_scope(layer_scope(index)):
                    carry = run_layer(layer, index, carry)
            return carry

        def body(carry: Carry, scanned: tuple[LayerType, Array]) -> tuple[Carry, None]:
            layer, index = scanned
            return run_layer(layer, index, carry), None

        num_layers = jax.tree.leaves(layers)[0].shape[0]
        carry, _ = lax.scan(body, carry, (layers, jnp.arange(num_layers, dtype=jnp.int32)))
        return carry


def stack_layers(layers: "nnx.List[LayerType]") -> LayerType:
    """One stacked layer in place of a list. The list's arrays are DELETED.

    Parameter by parameter: no more than one parameter of all layers exists twice.
    """
    structure = jax.tree.structure(layers[0])
    stacked = []
    for parts in zip(*map(jax.tree.leaves, layers), strict=True):
        stacked.append(_stack(parts).block_until_ready())
        for part in parts:
            part.delete()
    return jax.tree.unflatten(structure, stacked)


def stacked_shapes(layers: "nnx.List[LayerType]") -> LayerType:
    """What `stack_layers` would make of a list, with shapes and types in place of arrays."""

    def stack(first: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(layers), *first.shape), first.dtype)

    return jax.tree.map(stack, layers[0])


@jax.jit
def _stack(parts: tuple[Array, ...]) -> Array:
    return jnp.stack(parts)
