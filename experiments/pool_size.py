"""Does a step cost more when the KV pool is larger?

Question: a donated, in-place pool must not be copied; is a launch as fast with 4,096 blocks as
with 64?
Method: the same decode launches (8 sequences, the `small` benchmark shape: E 512, L 8, 4 heads x
128, random bfloat16 weights) in two engines that differ in num_blocks alone, their launches
interleaved pair by pair; the ratio of the medians over 60 pairs.

    python experiments/pool_size.py

Result (2026-11-29, 2 shared cores, CPU only, no GPU): 7.73 ms against 7.79 ms, ratio 1.008; a run
beside other work gave 1.017.
"""

import logging
from pathlib import Path
from statistics import median
from time import perf_counter

import jax.numpy as jnp
from flax import nnx

from looped.bench.model_maker import SHAPES
from looped.engine.llm_engine import LLMEngine
from looped.engine.options import EngineConfig
from looped.loading import LoadedModel
from looped.models import family_of
from looped.sampling_params import SamplingParams

SMALL = SHAPES["small"]
NUM_PAIRS = 60


def make_engine(loaded: LoadedModel, num_blocks: int) -> LLMEngine:
    config = EngineConfig(
        max_num_seqs=8, max_num_batched_tokens=64, num_blocks=num_blocks, max_model_len=128
    )
    engine = LLMEngine(loaded, config)
    for index in range(8):
        engine.add_request(str(index), [1 + index], SamplingParams(max_tokens=24))
    return engine


def timed_step(engine: LLMEngine) -> float:
    start = perf_counter()
    engine.step()
    engine.runner.state.progress.block_until_ready()
    engine.runner.state.key_pool.block_until_ready()
    return perf_counter() - start


def main() -> None:
    logging.disable(logging.WARNING)
    model = family_of(SMALL).model_class()(SMALL, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    loaded = LoadedModel(Path("random"), SMALL, model, "bfloat16")
    # 24 tokens of 8 sequences need 64 blocks: 2 a plane, 4 planes.
    small, large = make_engine(loaded, 64), make_engine(loaded, 4096)
    for _ in range(12):
        small.step()
        large.step()
    times = [(timed_step(small), timed_step(large)) for _ in range(NUM_PAIRS)]
    first, second = (median(column) for column in zip(*times, strict=True))
    print(
        f"64 blocks {1e3 * first:.2f} ms, 4096 blocks {1e3 * second:.2f} ms: {second / first:.3f}"
    )


if __name__ == "__main__":
    main()
