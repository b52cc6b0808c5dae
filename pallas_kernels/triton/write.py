"""Write of new keys and values into the pools as one Triton kernel, in place under donation."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..architectures import check_architecture
from ..no_block import NO_BLOCK
from ..rounding import next_power_of_two, padded_dim
from . import launch as jax_triton
from .launch import Launch


def write_kv(
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    block_ids: Int[Array, " T"],
    offsets: Int[Array, " T"],
    first_block: int | Int[Array, ""],
    *,
    architecture: str | None,
) -> tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]:
    """The contract of `kv_write.write_kv`.

    Raises:
        ImportError: jax-triton, Triton or JAX's CUDA plugin is missing.
        ValueError: no GPU (nor an abstract one), or one of unknown architecture.
    """
    if architecture is None:
        architecture = jax_triton.gpu_architecture()
    check_architecture(architecture)
    launch = partial(jax_triton.launch, architecture=architecture)
    return launch_write(launch, k_pool, v_pool, k, v, block_ids, offsets, first_block)


def launch_write(
    launch: Launch,
    k_pool: Float[Array, "LN K S D"],
    v_pool: Float[Array, "LN K S D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    block_ids: Int[Array, " T"],
    offsets: Int[Array, " T"],
    first_block: int | Int[Array, ""],
) -> tuple[Float[Array, "LN K S D"], Float[Array, "LN K S D"]]:
    """The one launch, whatever it is that launches; see `jax_triton.launch`."""
    from . import kernels as kernels

    num_rows, num_kv_heads, head_dim = k.shape
    k_pool, v_pool = launch(
        kernels.write_kernel,
        inputs=(k, v, block_ids, offsets, jnp.reshape(jnp.asarray(first_block, jnp.int32), (1,))),
        in_place=(k_pool, v_pool),
        grid=(num_rows,),
        constants={
            "NO_BLOCK": NO_BLOCK,
            "NUM_KV_HEADS": num_kv_heads,
            "BLOCK_SIZE": k_pool.shape[2],
            "HEAD_DIM": head_dim,
            "PADDED_HEADS": next_power_of_two(num_kv_heads),
            "PADDED_DIM": padded_dim(head_dim),
        },
        num_warps=4,
        num_stages=1,
    )
    return k_pool, v_pool
