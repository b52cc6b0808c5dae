"""From an engine's options and the machine to complete sizes: pool, longest sequence, chunk."""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from looped.config import ModelConfig
from looped.device.state import StateShape
from looped.errors import UsageError
from looped.loading import LoadedModel
from looped.pallas_kernels import (
    AUTO,
    BACKENDS,
    AttentionMetadata,
    ragged_paged_attention,
    resolve_backend,
)
from looped.process.jax_options import with_own_jax_options
from looped.programs.executables import Executables
from looped.programs.parameters import Parameters
from looped.sched import SchedulerConfig, ladders_for

from .memory_plan import (
    CPU_MAX_MODEL_LEN,
    blocks_on_cpu,
    blocks_on_gpu,
    device_memory,
    explicit_blocks,
)
from .options import EngineConfig

logger = logging.getLogger(__name__)


def plan_scheduler(config: EngineConfig, shape: StateShape) -> SchedulerConfig:
    """The scheduler's part of the options, complete; UsageError where they contradict."""
    return config.scheduler_config(
        num_planes=shape.config.num_loops,
        vocab_size=shape.config.vocab_size,
        num_blocks=shape.num_blocks,
        max_model_len=shape.max_model_len,
        cache_salt=f"{shape.config}:{shape.dtype}:{shape.kv_dtype}",
    )


def log_derived(config: SchedulerConfig) -> None:
    """Says which sizes were left out and derived, where a user may expect others."""
    if config.chunk_warning is not None:
        logger.warning("%s", config.chunk_warning)
    elif config.is_chunk_derived:
        logger.info(
            "prefill_chunk_size %d, derived from max_num_batched_tokens %d and max_num_seqs %d",
            config.chunk_size,
            config.budget,
            config.max_num_seqs,
        )
    policy = config.chosen_policy
    if config.prefix_caching is None and not config.has_prefix_caching(policy):
        logger.info("prefix caching is off, which policy %s does without", policy.name)


@with_own_jax_options
def check_options(config: EngineConfig, model: ModelConfig, num_loops: int | None) -> None:
    """Refuses options that contradict each other or the model, before weights are read.

    Args:
        config: the engine's options.
        model: as config.json describes it.
        num_loops: what the model is to be loaded with; None leaves P as it is.

    Raises:
        UsageError: with the numbers.
    """
    model = replace(model, num_loops=num_loops or model.num_loops)
    config.exit_defaults(model)
    backend = choose_backend(config)
    is_cpu = jax.default_backend() == "cpu"
    shape = _trial_shape(config, model, jnp.dtype(jnp.float32), is_cpu=is_cpu)
    plan_scheduler(config, shape)
    # The type of the weights is not known yet: whether it goes with that of the cache comes later.
    _check_attention(replace(shape, dtype=shape.kv_dtype), backend)


def plan_shape(
    loaded: LoadedModel, config: EngineConfig, parameters: Parameters, backend: str
) -> StateShape:
    """Sizes of the device state: longest sequence, KV type, and a pool that memory allows.

    Raises:
        UsageError: options that contradict each other, the model or the attention backend.
        LoopedError: no memory for a useful pool.
    """
    is_cpu = jax.default_backend() == "cpu"
    shape = _trial_shape(config, loaded.config, jnp.dtype(loaded.dtype), is_cpu=is_cpu)
    trial = plan_scheduler(config, shape)
    shape = _with_prompt_pool(shape, trial)
    _check_attention(shape, backend)
    device = jax.devices()[0]
    if device.platform == "cpu":
        if shape.kv_dtype == jnp.bfloat16:
            logger.warning("a bfloat16 KV cache is slow on CPU: XLA converts the pool to write")
        return replace(shape, num_blocks=blocks_on_cpu(config, shape))
    if (explicit := explicit_blocks(config, shape)) is not None:
        return replace(shape, num_blocks=explicit)
    executables = Executables(
        shape, parameters, backend=backend, is_deterministic=config.deterministic
    )
    ladders = ladders_for(trial, is_deterministic=config.deterministic)
    executables.prepare([(kind, ladder[-1]) for kind, ladder in ladders.items()])
    limit, in_use = device_memory(device)
    return _fill_gpu(
        config,
        shape,
        bytes_limit=limit,
        bytes_in_use=in_use,
        workspace=executables.workspace_bytes,
    )


def choose_backend(config: EngineConfig) -> str:
    """Name of the attention backend on this machine.

    Raises:
        UsageError: no such backend, or one that this platform cannot run.
    """
    name, platform = config.attention_backend, jax.default_backend()
    if name not in (AUTO, *BACKENDS):
        raise UsageError(
            f"attention_backend must be one of {', '.join((AUTO, *BACKENDS))}; got {name!r}"
        )
    if name == AUTO and config.deterministic:
        return "xla"  # whose rows do not depend on their neighbours
    if platform == "cpu" and name.startswith("triton"):
        raise UsageError(
            f"attention_backend {name} runs on an NVIDIA GPU, and JAX has found {platform} only; "
            "leave it out, or take xla"
        )
    return resolve_backend(name, platform)


def _check_attention(shape: StateShape, backend: str) -> None:
    """UsageError for a head_dim, group, type or GPU that the backend does not serve."""
    config = shape.config

    def typed(dtype: Any, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    pool = typed(shape.kv_dtype, 1, config.num_kv_heads, shape.block_size, config.head_dim)
    query = typed(shape.dtype, 2, config.num_heads, config.head_dim)
    metadata = AttentionMetadata.abstract(
        num_decode=2, num_items=2, table_width=shape.blocks_per_seq
    )
    attend = partial(
        ragged_paged_attention, first_block=0, scale=config.head_dim**-0.5, backend=backend
    )
    try:
        jax.eval_shape(attend, query, pool, pool, metadata)
    except (ImportError, ValueError) as error:
        raise UsageError(f"attention_backend {backend}: {error}") from None


def plan_absent_gpu(
    config: EngineConfig,
    model: ModelConfig,
    dtype: str,
    *,
    bytes_limit: int,
    bytes_in_use: int,
    workspace: int,
) -> StateShape:
    """What `plan_shape` would come to on a GPU that is not there, from its numbers.

    Args:
        config: the engine's options.
        model: as config.json describes it.
        dtype: of the weights; cached keys and values have it, too, unless `config` says otherwise.
        bytes_limit: memory that JAX would let the engine use.
        bytes_in_use: of the weights.
        workspace: temporary memory of the largest step, guessed.

    Raises:
        UsageError: options that contradict each other or the model.
        LoopedError: no memory for a useful pool.
    """
    shape = _trial_shape(config, model, jnp.dtype(dtype), is_cpu=False)
    shape = _with_prompt_pool(shape, plan_scheduler(config, shape))
    if (explicit := explicit_blocks(config, shape)) is not None:
        return replace(shape, num_blocks=explicit)
    return _fill_gpu(
        config,
        shape,
        bytes_limit=bytes_limit,
        bytes_in_use=bytes_in_use,
        workspace=workspace,
    )


def _fill_gpu(config: EngineConfig, shape: StateShape, **memory: int) -> StateShape:
    """A pool of what memory leaves; what fits bounds the longest sequence, unless it is named."""
    num_blocks = blocks_on_gpu(config, shape, **memory)
    fitting = num_blocks // shape.config.num_loops * config.block_size
    longest = config.max_model_len or min(shape.max_model_len, fitting)
    return replace(shape, num_blocks=num_blocks, max_model_len=longest)


def _with_prompt_pool(shape: StateShape, config: SchedulerConfig) -> StateShape:
    """Room for the prompt items that the scheduler may have under way."""
    window = config.max_window(config.chosen_policy)
    return replace(shape, chunk_size=config.chunk_size, max_window=window)


def _trial_shape(
    config: EngineConfig, model: ModelConfig, dtype: np.dtype[Any], *, is_cpu: bool
) -> StateShape:
    """All sizes but chunk and pool, which the scheduler's checks and memory still decide."""
    longest = model.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise UsageError(
            f"max_model_len must be at most the model's {longest} positions, "
            f"got {config.max_model_len}"
        )
    default_kv_dtype = np.dtype(np.float32) if is_cpu else dtype
    return StateShape(
        config=model,
        dtype=dtype,
        kv_dtype=jnp.dtype(config.kv_cache_dtype) if config.kv_cache_dtype else default_kv_dtype,
        num_blocks=config.num_blocks or model.num_loops + config.kv_watermark,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        chunk_size=1,
        max_model_len=config.max_model_len
        or (min(longest, CPU_MAX_MODEL_LEN) if is_cpu else longest),
    )
