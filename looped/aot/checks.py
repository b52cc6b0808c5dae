"""What a compiled step must not have, and what a decode step should reach. One line per finding."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import jax

from looped.config import ModelConfig
from looped.device.state import DeviceState
from looped.pallas_kernels import SPILL_LIMIT

from .hlo import HloModule
from .kernels import Kernel
from .launches import Launch, count

LAUNCHES_PER_LAYER = 12
"""Aim of decode buckets, attention included."""
BYTES_OVER_FLOOR = 1.15
"""Aim of decode buckets: bytes outside attention, over weights and activations."""
STATE_PREFIX = "state."
"""Begins the names of the program's parameters that are device state."""


def kernel_failures(kernels: Sequence[Kernel], max_shared_bytes: int) -> Iterator[str]:
    """Kernels that spill, and such as ask for more shared memory than a block may have."""
    for kernel in kernels:
        if kernel.spill_bytes > SPILL_LIMIT:
            yield f"kernel {kernel.name} spills {kernel.spill_bytes} bytes, over {SPILL_LIMIT}"
        if kernel.shared_bytes > max_shared_bytes:
            yield (
                f"kernel {kernel.name} takes {kernel.shared_bytes:,} bytes of shared memory, over "
                f"{max_shared_bytes:,}"
            )


def unread_failures(names: Sequence[str]) -> Iterator[str]:
    """Launches of kernels that nobody has looked at, so that nothing is known of their spills."""
    for name in names:
        yield f"{name} launches a kernel of which no PTX was found: its spills are not known"


def state_failures(module: HloModule, state: DeviceState, aliased_bytes: int) -> Iterator[str]:
    """Buffers of the device state whose memory no result takes over.

    Args:
        module: the step; its parameters are named after the step's arguments.
        state: as shapes and types.
        aliased_bytes: what the executable reports.
    """
    for number, parameter in module.entry.parameters.items():
        is_state = parameter.op_name.startswith(STATE_PREFIX)
        if is_state and number not in module.aliased_parameters:
            yield f"{parameter.op_name} of {parameter.num_bytes:,} bytes is not aliased"
    state_bytes = sum(map(_num_bytes, jax.tree.leaves(state)))
    if aliased_bytes < state_bytes:
        yield f"{aliased_bytes:,} bytes are aliased, the state has {state_bytes:,}"


def pool_failures(
    launches: Sequence[Launch], state: DeviceState, config: ModelConfig, temporary_bytes: int
) -> Iterator[str]:
    """Room for a second pool, and copies of one or of as much as one layer's blocks.

    Copies of weights are `weight_aims`: in a small pool a layer has fewer bytes than a matrix.
    """
    pool_bytes = _num_bytes(state.key_pool)
    if temporary_bytes >= pool_bytes:
        yield f"{temporary_bytes:,} temporary bytes, as many as a pool has: {pool_bytes:,}"
    layer_bytes = pool_bytes // config.num_layers
    for launch in launches:
        num_bytes = launch.result.num_bytes
        if launch.is_movement and num_bytes >= layer_bytes and not _is_weight(launch, config):
            yield f"{launch.name} copies {num_bytes:,} bytes, a layer of a pool has {layer_bytes:,}"


def host_failures(module: HloModule) -> Iterator[str]:
    """Conditions and loops whose predicates XLA copies to the host, which waits for each."""
    instructions = (each for one in module.computations.values() for each in one)
    for instruction in instructions:
        if instruction.opcode == "conditional":
            yield f"{instruction.name} ({instruction.op_name}) is a conditional: the host waits"
        elif instruction.opcode == "while" and not instruction.has_known_trip_count:
            yield (
                f"{instruction.name} ({instruction.op_name}) is a loop whose trip count is not "
                "known: the host waits in every round"
            )


def launch_aims(launches_per_layer: int) -> Iterator[str]:
    """More launches than a layer should have."""
    if launches_per_layer > LAUNCHES_PER_LAYER:
        yield f"{launches_per_layer} launches per layer, over {LAUNCHES_PER_LAYER}"


def weight_aims(launches: Sequence[Launch], config: ModelConfig) -> Iterator[str]:
    """Launches that copy or transpose a layer's matrix."""
    copies = [launch for launch in launches if launch.is_movement and _is_weight(launch, config)]
    if copies:
        num_bytes = sum(launch.result.num_bytes * launch.times for launch in copies)
        yield f"{count(copies)} copies of a weight, {num_bytes:,} bytes; {copies[0].name} and more"


def byte_aims(bytes_over_floor: float) -> Iterator[str]:
    """More bytes than weights and activations account for."""
    if bytes_over_floor > BYTES_OVER_FLOOR:
        yield (
            f"{bytes_over_floor:.2f} times the least bytes outside attention, "
            f"over {BYTES_OVER_FLOOR}"
        )


def _is_weight(launch: Launch, config: ModelConfig) -> bool:
    """Whether a launch's result is a layer's matrix, known by its number of values."""
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    sizes = {width * size for size in (queries + 2 * keys, queries, 2 * inner, inner)}
    return any(prod(dimensions) in sizes for _, dimensions in launch.result.arrays)


def _num_bytes(leaf: Any) -> int:
    return int(leaf.size) * int(leaf.dtype.itemsize)
