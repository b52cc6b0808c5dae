"""From an engine's options and the machine to complete sizes: pool, longest sequence, chunk."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp

from looped.pallas_kernels import BACKENDS
from looped.sched import ConfigError, SchedulerConfig

from .engine_config import EngineConfig
from .errors import UsageError
from .executables import Executables, ladders_for
from .loading import LoadedModel
from .memory import CPU_MAX_MODEL_LEN, blocks_on_cpu, blocks_on_gpu, device_memory
from .state import StateShape
from .steps import Parameters

logger = logging.getLogger(__name__)


def plan_scheduler(config: EngineConfig, shape: StateShape) -> SchedulerConfig:
    """The scheduler's part of the options, complete; UsageError where they contradict."""
    try:
        return SchedulerConfig(
            num_planes=shape.config.num_loops,
            vocab_size=shape.config.vocab_size,
            num_blocks=shape.num_blocks,
            max_model_len=shape.max_model_len,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            prefill_chunk_size=config.prefill_chunk_size,
            min_coda_batch_size=config.min_coda_batch_size,
            max_prefill_batches_before_decode=config.max_prefill_batches_before_decode,
            policy=config.policy_name,
            prompt_shortcut=config.prompt_shortcut,
            scheduling_policy=config.scheduling_policy,
            admission_scan_limit=config.admission_scan_limit,
            admission_bypass_limit=config.admission_bypass_limit,
            kv_watermark=config.kv_watermark,
            incremental_kv=config.incremental_kv,
            prefix_caching=config.prefix_caching,
            cache_salt=f"{jnp.dtype(shape.dtype)}:{jnp.dtype(shape.kv_dtype)}",
        )
    except ConfigError as error:
        raise UsageError(str(error)) from None


def plan_shape(loaded: LoadedModel, config: EngineConfig, parameters: Parameters) -> StateShape:
    """Sizes of the device state: longest sequence, KV type, and a pool that memory allows."""
    if config.attention_backend not in BACKENDS:
        raise UsageError(
            f"attention_backend must be one of {', '.join(BACKENDS)}; "
            f"got {config.attention_backend!r}"
        )
    device = jax.devices()[0]
    is_cpu = device.platform == "cpu"
    longest = loaded.config.max_position_embeddings
    max_model_len = config.max_model_len or (min(longest, CPU_MAX_MODEL_LEN) if is_cpu else longest)
    if max_model_len > longest:
        raise UsageError(
            f"max_model_len must be at most the model's {longest} positions, got {max_model_len}"
        )
    dtype = jnp.dtype(loaded.dtype)
    if config.kv_cache_dtype is not None:
        kv_dtype = jnp.dtype(config.kv_cache_dtype)
    else:
        kv_dtype = jnp.dtype(jnp.float32) if is_cpu else dtype
    if is_cpu and kv_dtype == jnp.bfloat16:
        logger.warning("a bfloat16 KV cache is slow on CPU: XLA converts the whole pool to write")
    # A trial scheduler configuration derives the chunk and checks the rest before memory is taken.
    shape = StateShape(
        config=loaded.config,
        dtype=dtype,
        kv_dtype=kv_dtype,
        num_blocks=config.num_blocks or loaded.config.num_loops + config.kv_watermark,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        chunk_size=1,
        max_model_len=max_model_len,
    )
    trial = plan_scheduler(config, shape)
    shape = replace(shape, chunk_size=trial.chunk_size)
    if is_cpu:
        return replace(shape, num_blocks=blocks_on_cpu(config, shape))
    executables = Executables(shape, parameters, backend=config.attention_backend)
    executables.prepare(
        [
            (kind, ladder[-1])
            for kind, ladder in ladders_for(trial, is_deterministic=config.deterministic).items()
        ]
    )
    limit, in_use = device_memory(device)
    num_blocks = blocks_on_gpu(
        config,
        shape,
        bytes_limit=limit,
        bytes_in_use=in_use,
        workspace=executables.workspace_bytes,
    )
    # What fits bounds the longest sequence, unless the user has named it.
    fitting = num_blocks // loaded.config.num_loops * config.block_size
    if config.max_model_len is None:
        max_model_len = min(max_model_len, fitting)
    return replace(shape, num_blocks=num_blocks, max_model_len=max_model_len)
