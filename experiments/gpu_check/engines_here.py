"""Engines for the stages: on the fixtures, and on random weights in a benchmark's shape."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from looped.engine.llm_engine import LLMEngine
from looped.engine.options import EngineConfig
from looped.engine.outputs import Completion
from looped.loading import LoadedModel, load_folder
from looped.models import family_of, read_config
from looped.models.looped_model import LoopedModel
from looped.pallas_kernels import BACKENDS

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"

SMALL = EngineConfig(
    max_num_seqs=8,
    max_num_batched_tokens=32,
    prefill_chunk_size=16,
    max_model_len=96,
    num_blocks=4 * 8 * 6,
)


def fixture_engine(name: str, *, dtype: str = "float32", **options: Any) -> LLMEngine:
    """A small engine on a tiny checkpoint; cached keys and values are of the model's type."""
    config = replace(SMALL, kv_cache_dtype=dtype, **options)
    return LLMEngine(load_folder(FIXTURES / name, dtype=dtype, layers=config.layers), config)


def drain(engine: LLMEngine) -> dict[str, Completion]:
    """Runs an engine until nothing is left; RuntimeError if it says that a request has failed."""
    completions: dict[str, Completion] = {}
    while engine.has_unfinished_requests():
        for done in engine.step().completions:
            if done.error is not None:
                raise RuntimeError(f"request {done.request_id}: {done.error}")
            completions[done.request_id] = done
    return completions


IN_ORDER_OF_VALUE = ("triton", "pallas", "xla", "triton_fused")


def backends_here(*, is_rehearsal: bool) -> list[str]:
    """Backends to check, the likeliest to be used first; on a CPU one fast and one interpreted."""
    assert set(IN_ORDER_OF_VALUE) == set(BACKENDS)
    return ["xla", "pallas"] if is_rehearsal else list(IN_ORDER_OF_VALUE)


def random_model(*, is_rehearsal: bool, layers: str) -> LoadedModel:
    """Random bfloat16 weights in the 1.4B shape, made on the device; a tiny one to rehearse."""
    config = read_config(FIXTURES / "ouro-tiny" / "config.json")
    if not is_rehearsal:
        config = replace(
            config, num_layers=24, hidden_size=2048, num_heads=16, num_kv_heads=16, head_dim=128,
            intermediate_size=5632, vocab_size=49152,
        )  # fmt: skip

    model_class = family_of(config).model_class()

    def build() -> LoopedModel:
        return model_class(config, dtype=jnp.dtype("bfloat16"), rngs=nnx.Rngs(0))

    model = jax.block_until_ready(nnx.jit(build)())
    if layers == "scanned":
        model.stack_layers()
    return LoadedModel(Path("random-1.4b"), config, model, "bfloat16")
