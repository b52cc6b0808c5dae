"""Frozen tile configurations of the Triton kernels, per architecture, dtype and head_dim.

Chosen at compile time only: no spill, shared memory within what a block may use (163 KiB on
sm_80, 227 KiB on sm_90), loads that overlap with arithmetic. None has been timed on a GPU yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..architectures import ARCHITECTURES, check_architecture
from ..rounding import padded_dim


@dataclass(frozen=True, kw_only=True)
class LaunchTiles:
    """How one program of a kernel works."""

    queries: int
    """Rows of the query tile: pairs of row and head. wgmma on sm_90 needs 64."""
    keys: int
    """Positions of a key tile."""
    num_warps: int
    num_stages: int
    """Depth of the load pipeline, counted by Triton; 5 is the first that buffers K and V twice,
    because their addresses come from a load of the block table."""


@dataclass(frozen=True, kw_only=True)
class TritonTiles:
    """Configuration of all kernels for one architecture, dtype and padded head_dim."""

    prompt: LaunchTiles
    decode: LaunchTiles
    """Queries are heads of one row; larger groups of heads take several tiles."""
    fused: LaunchTiles
    """Queries are those of a prompt tile; decode rows keep `decode.queries`."""
    num_splits: int = 16
    """Most programs that share the keys of one decode row and kv head."""
    min_split_keys: int = 128
    """Fewest keys worth a program of their own; a multiple of the key tiles."""


Sizes = tuple[int, int, int, int]
"""Queries, keys, warps, stages."""


def _tiles(prompt: Sizes, decode: Sizes, fused: Sizes | None = None) -> TritonTiles:
    """None: the fused kernel takes what prompt rows take."""

    def launch(sizes: Sizes) -> LaunchTiles:
        queries, keys, num_warps, num_stages = sizes
        return LaunchTiles(queries=queries, keys=keys, num_warps=num_warps, num_stages=num_stages)

    return TritonTiles(prompt=launch(prompt), decode=launch(decode), fused=launch(fused or prompt))


# Key: architecture, kind of dtype ("half": float16 and bfloat16), padded head_dim. Float32 products
# in full precision do not use tensor cores and need registers for whole rows of a tile.
_FLOAT32 = {
    64: _tiles((64, 32, 8, 2), (16, 32, 4, 2)),
    128: _tiles((64, 16, 8, 2), (16, 32, 8, 2), fused=(32, 16, 8, 2)),
    256: _tiles((16, 16, 4, 2), (16, 32, 8, 2), fused=(16, 16, 8, 2)),
}
_HALF = {
    64: _tiles((64, 64, 8, 5), (16, 64, 4, 5)),
    128: _tiles((64, 64, 8, 5), (16, 64, 4, 5)),
    256: _tiles((64, 32, 8, 5), (16, 32, 4, 5)),
}
TILES: Mapping[tuple[str, str, int], TritonTiles] = MappingProxyType(
    {
        (architecture, kind, size): tiles
        for architecture in ARCHITECTURES
        for kind, sizes in (("float32", _FLOAT32), ("half", _HALF))
        for size, tiles in sizes.items()
    }
)


def tiles_for(architecture: str, dtype: str, head_dim: int) -> TritonTiles:
    """Configuration for a GPU architecture.

    Args:
        architecture: "sm_" and the compute capability, 10 * major + minor.
        dtype: name of the type that products are taken in.

    Raises:
        ValueError: a GPU without a configuration.
    """
    check_architecture(architecture)
    size = max(64, padded_dim(head_dim))
    return TILES[architecture, "float32" if dtype == "float32" else "half", size]
