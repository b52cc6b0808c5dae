"""Tile sizes and launch parameters of the kernels, frozen per GPU architecture.

This table is that of the Pallas kernels; `triton_tiles` is that of the Triton kernels. A
configuration is chosen by the architecture and by the dtype and head_dim of a tile, which is what
fills shared memory and registers. The numbers come from compiling ahead of time (registers,
spills, shared memory); no GPU has timed them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp
from jax.sharding import get_abstract_mesh
from jax.typing import DTypeLike

MAX_HEAD_DIM = 256

SPILL_LIMIT = 32
"""Bytes per thread that a kernel may keep in memory for want of registers."""

# The smallest inner dimension that Triton's dot takes.
MIN_TILE_DIM = 16


@dataclass(frozen=True, kw_only=True)
class TileConfiguration:
    """One launch configuration of the attention kernels. Sizes are powers of two."""

    max_itemsize: int
    """Largest dtype of a tile's products that it serves, bytes."""
    max_head_dim: int
    """Largest head_dim that it serves, itself a power of two."""
    decode_queries: int = 16
    """Queries of a decode tile: the query heads of one kv head, padded. 16 is Triton's least."""
    prompt_queries: int = 64
    """Queries of a prompt tile: rows times query heads per kv head. 64 is the least for wgmma."""
    key_tile: int
    """Positions of a key tile."""
    num_splits: int = 8
    """Parts that a decode row's keys are cut into, one program each (split-KV)."""
    decode_warps: int
    decode_stages: int
    prompt_warps: int
    prompt_stages: int
    """Stages of the software pipeline. Keys lie two loads away, behind the block table, so five
    are the first that double-buffer them."""


TILES: Mapping[str, tuple[TileConfiguration, ...]] = MappingProxyType(
    {
        "sm_80": (
            TileConfiguration(
                max_itemsize=2,
                max_head_dim=128,
                key_tile=64,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=8,
                prompt_stages=5,
            ),
            TileConfiguration(
                max_itemsize=2,
                max_head_dim=256,
                key_tile=32,
                decode_warps=4,
                decode_stages=3,
                prompt_warps=8,
                prompt_stages=3,
            ),
            TileConfiguration(
                max_itemsize=4,
                max_head_dim=128,
                key_tile=16,
                decode_warps=4,
                decode_stages=3,
                prompt_warps=8,
                prompt_stages=3,
            ),
            TileConfiguration(
                max_itemsize=4,
                max_head_dim=256,
                key_tile=16,
                decode_warps=4,
                decode_stages=3,
                prompt_warps=8,
                prompt_stages=3,
            ),
        ),
        "sm_90": (
            TileConfiguration(
                max_itemsize=2,
                max_head_dim=128,
                key_tile=64,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=4,
                prompt_stages=5,
            ),
            TileConfiguration(
                max_itemsize=2,
                max_head_dim=256,
                key_tile=32,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=8,
                prompt_stages=5,
            ),
            TileConfiguration(
                max_itemsize=4,
                max_head_dim=128,
                key_tile=16,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=8,
                prompt_stages=5,
            ),
            TileConfiguration(
                max_itemsize=4,
                max_head_dim=256,
                key_tile=16,
                decode_warps=4,
                decode_stages=3,
                prompt_warps=8,
                prompt_stages=3,
            ),
        ),
    }
)

ARCHITECTURES = tuple(TILES)
"""Those of both backends; `triton_tiles` has the Triton kernels' tiles for each."""

# The names by which GPUs call themselves.
DEVICE_KINDS: Mapping[str, str] = MappingProxyType(
    {"A100": "sm_80", "H100": "sm_90", "H200": "sm_90"}
)

# Its tiles fit into the shared memory of every architecture of the table.
DEFAULT_ARCHITECTURE = "sm_80"


def architecture_of(device: jax.Device) -> str:
    """The key of `TILES` for a device, real or from a topology; the default for a CPU.

    Raises:
        ValueError: a GPU that the table does not hold.
    """
    if device.platform == "cpu":
        return DEFAULT_ARCHITECTURE
    architecture = f"sm_{str(device.compute_capability).replace('.', '')}"
    check_architecture(architecture)
    return architecture


def architecture_here() -> str:
    """Of the device that code being traced is for: an abstract device's, or the default one's.

    Raises:
        ValueError: a GPU that the table does not hold.
    """
    abstract = get_abstract_mesh().abstract_device
    if abstract is None:
        return architecture_of(jax.devices()[0])
    for name, architecture in DEVICE_KINDS.items():
        if re.search(rf"\b{name}\b", abstract.device_kind):
            return architecture
    raise ValueError(
        f"expected an abstract device among {', '.join(DEVICE_KINDS)}, got {abstract.device_kind!r}"
    )


def tile_configuration(architecture: str, head_dim: int, dtype: DTypeLike) -> TileConfiguration:
    """The configuration for one architecture, head_dim and dtype of the tiles.

    Raises:
        ValueError: an architecture that the table does not hold, or a head_dim over 256.
    """
    check_architecture(architecture)
    itemsize = jnp.dtype(dtype).itemsize
    for configuration in TILES[architecture]:
        if itemsize <= configuration.max_itemsize and head_dim <= configuration.max_head_dim:
            return configuration
    raise ValueError(
        f"attention kernels: expected head_dim up to {MAX_HEAD_DIM} of at most 4 bytes each, "
        f"got {head_dim} of {jnp.dtype(dtype)}; choose the backend xla for it"
    )


def check_architecture(architecture: str) -> None:
    """Refuse what has no tiles.

    Raises:
        ValueError: not one of `ARCHITECTURES`.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"attention kernels: expected a GPU architecture of {', '.join(ARCHITECTURES)}, "
            f"got {architecture!r}; choose the backend xla there"
        )


def padded_dim(head_dim: int) -> int:
    """head_dim as it stands in a tile: the next power of two, at least 16."""
    return max(MIN_TILE_DIM, next_power_of_two(head_dim))


def next_power_of_two(size: int) -> int:
    """The least power of two that is not below `size`, which is at least 1."""
    return 1 << (size - 1).bit_length()
