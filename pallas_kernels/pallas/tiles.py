"""Frozen tile configurations of the Pallas kernels, per GPU architecture.

A configuration is chosen by the architecture and by the dtype and head_dim of a tile, which is what
fills shared memory and registers. The numbers come from compiling ahead of time (registers,
spills, shared memory); no GPU has timed them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax.numpy as jnp

from ..architectures import check_architecture


@dataclass(frozen=True, kw_only=True)
class PallasTiles:
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


TILES: Mapping[str, tuple[PallasTiles, ...]] = MappingProxyType(
    {
        "sm_80": (
            PallasTiles(
                max_itemsize=2,
                max_head_dim=128,
                key_tile=64,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=8,
                prompt_stages=5,
            ),
            PallasTiles(
                max_itemsize=2,
                max_head_dim=256,
                key_tile=32,
                decode_warps=4,
                decode_stages=3,
                prompt_warps=8,
                prompt_stages=3,
            ),
            PallasTiles(
                max_itemsize=4,
                max_head_dim=128,
                key_tile=16,
                decode_warps=4,
                decode_stages=3,
                prompt_warps=8,
                prompt_stages=3,
            ),
            PallasTiles(
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
            PallasTiles(
                max_itemsize=2,
                max_head_dim=128,
                key_tile=64,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=4,
                prompt_stages=5,
            ),
            PallasTiles(
                max_itemsize=2,
                max_head_dim=256,
                key_tile=32,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=8,
                prompt_stages=5,
            ),
            PallasTiles(
                max_itemsize=4,
                max_head_dim=128,
                key_tile=16,
                decode_warps=4,
                decode_stages=5,
                prompt_warps=8,
                prompt_stages=5,
            ),
            PallasTiles(
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


def tiles_for(architecture: str, dtype: str, head_dim: int) -> PallasTiles:
    """The configuration for one architecture, and dtype and head_dim of the tiles.

    Args:
        dtype: name of the type that products are taken in.
        head_dim: at most 256.

    Raises:
        ValueError: an architecture that the table does not hold.
    """
    check_architecture(architecture)
    itemsize = jnp.dtype(dtype).itemsize
    return next(
        configuration
        for configuration in TILES[architecture]
        if itemsize <= configuration.max_itemsize and head_dim <= configuration.max_head_dim
    )
