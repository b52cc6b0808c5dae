"""How much memory goes where, and how many KV blocks that leaves."""

import os
from dataclasses import dataclass
from pathlib import Path

import jax

from looped.device.state import StateShape
from looped.errors import LoopedError

from .options import EngineConfig

CPU_MAX_MODEL_LEN = 4096
CPU_POOL_SHARE = 4
"""On a CPU the pool takes at most one part in this many of RAM."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
COARSE_STEP = 256
"""GPU pools are rounded down to a multiple of this: free memory differs by a little at every
start, and a pool that differs by a block misses the compilation cache."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes of everything that stays on the device."""

    weights: int
    kv_pool: int
    prompt_state: int
    sampling_state: int
    """Token marks and logit biases of all slots."""
    request_table: int
    """Block tables, options and progress of all slots."""
    workspace: int
    """Largest temporary memory of the compiled steps."""

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "KV pool": self.kv_pool,
            "prompt state": self.prompt_state,
            "sampling state": self.sampling_state,
            "request table": self.request_table,
            "workspace": self.workspace,
        }
        listed = ", ".join(f"{name} {size:,}" for name, size in parts.items())
        return f"memory plan (bytes): {listed}; in all {sum(parts.values()):,}"


def blocks_for_requests(shape: StateShape) -> int:
    """Blocks with which max_num_seqs requests of max_model_len never wait for KV."""
    return shape.max_num_seqs * shape.config.num_loops * shape.blocks_per_seq


def explicit_blocks(config: EngineConfig, shape: StateShape) -> int | None:
    """The pool's size where the user has given it, in blocks or in bytes; else None.

    Raises:
        LoopedError: when kv_cache_bytes does not hold a block for each plane.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_cache_bytes is not None:
        num_blocks = config.kv_cache_bytes // shape.block_bytes
        return _check_useful(num_blocks, shape, f"kv_cache_bytes = {config.kv_cache_bytes:,}")
    return None


def blocks_on_cpu(config: EngineConfig, shape: StateShape) -> int:
    """Size of a CPU's pool: what is asked for, else what requests need within a quarter of RAM.

    Args:
        config: explicit sizes.
        shape: `num_blocks` of it is not read.

    Raises:
        LoopedError: when that does not hold a block for each plane.
    """
    explicit = explicit_blocks(config, shape)
    if explicit is not None:
        if explicit * shape.block_bytes > host_memory():
            raise LoopedError(
                f"a KV pool of {explicit} blocks takes {explicit * shape.block_bytes:,} bytes, "
                f"more than the {host_memory():,} of this machine"
            )
        return explicit
    share = host_memory() // CPU_POOL_SHARE
    num_blocks = min(share // shape.block_bytes, blocks_for_requests(shape))
    return _check_useful(num_blocks, shape, "a quarter of RAM")


def blocks_on_gpu(
    config: EngineConfig, shape: StateShape, *, bytes_limit: int, bytes_in_use: int, workspace: int
) -> int:
    """Size of a GPU's pool: what is left of the allowed share.

    Args:
        config: the share.
        shape: `num_blocks` of it is not read.
        bytes_limit: memory of the device that JAX may use.
        bytes_in_use: what is taken already, the weights among it.
        workspace: temporary memory of the largest step.

    Raises:
        LoopedError: when nothing useful is left.
    """
    allowed = int(bytes_limit * config.gpu_memory_utilization)
    kept = shape.prompt_state_bytes + shape.sampling_state_bytes + shape.request_table_bytes
    left = allowed - bytes_in_use - workspace - kept
    num_blocks = min(max(left, 0) // shape.block_bytes, blocks_for_requests(shape))
    if num_blocks > COARSE_STEP:
        num_blocks -= num_blocks % COARSE_STEP
    return _check_useful(num_blocks, shape, "the memory that gpu_memory_utilization leaves")


def host_memory(limit_file: Path = CGROUP_LIMIT) -> int:
    """Bytes of RAM that this process may use: the machine's, or its container's if that is less."""
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = limit_file.read_text().strip() if limit_file.exists() else "max"
    return ram if limit == "max" else min(ram, int(limit))


def device_memory(device: jax.Device) -> tuple[int, int]:
    """Bytes that JAX may use on a GPU and bytes in use now.

    Raises:
        LoopedError: when the platform does not say.
    """
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        raise LoopedError(
            f"{device} does not report its memory; size the KV pool with --kv-cache-bytes"
        )
    return stats["bytes_limit"], stats["bytes_in_use"]


def _check_useful(num_blocks: int, shape: StateShape, what: str) -> int:
    planes = shape.config.num_loops
    if num_blocks < planes:
        raise LoopedError(
            f"{what} holds {num_blocks} KV blocks of {shape.block_bytes:,} bytes; "
            f"at least {planes} are needed, one for each plane"
        )
    return num_blocks
