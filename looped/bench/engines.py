"""Engines of one point, on executables that they all share, and what must not disturb their runs.

Every run has an engine of its own: the state is fresh, and nothing is compiled. What set-up leaves
behind is frozen out of Python's garbage collection, whose pauses would be measured.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

from looped.engine import LLMEngine
from looped.engine_config import EngineConfig
from looped.executables import Executables
from looped.launch_observer import LaunchObserver
from looped.loading import LoadedModel

from .plan import EnginePoint
from .runs import RunOptions

COMPILED = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Counts what JAX compiles, of any kind."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, event: str, duration_secs: float, **_: str | int) -> None:
        self.count += event == COMPILED


@contextmanager
def counting_compilations() -> Iterator[CompilationCounter]:
    """A counter that listens while the block runs."""
    counter = CompilationCounter()
    jax.monitoring.register_event_duration_secs_listener(counter)
    try:
        yield counter
    finally:
        jax.monitoring.unregister_event_duration_listener(counter)


class BenchEngines:
    """Makes the engines of one point.

    Args:
        point: how they are built.
        loaded: its model.
    """

    def __init__(self, point: EnginePoint, loaded: LoadedModel) -> None:
        self.point = point
        self.loaded = loaded
        self._executables: Executables | None = None

    def build(
        self, policy: str, observer: LaunchObserver, prompt_lengths: Sequence[int]
    ) -> LLMEngine:
        """A fresh engine with everything compiled that requests of these lengths can reach."""
        gc.collect()  # the last run's engine: a device may not hold two pools
        point = self.point
        config = EngineConfig(
            policy=policy,
            max_num_seqs=point.max_num_seqs,
            max_num_batched_tokens=point.budget,
            prefill_chunk_size=point.chunk_size,
            max_model_len=point.max_model_len,
            block_size=point.block_size,
            num_blocks=point.num_blocks,
            kv_cache_dtype=point.kv_cache_dtype,
            attention_backend=point.attention_backend,
            layers=point.layers,
            prefix_caching=False,
        )
        engine = LLMEngine(self.loaded, config, executables=self._executables, observer=observer)
        self._executables = engine.runner.executables
        engine.warm_up(list(prompt_lengths), has_scores=False)
        return engine

    def options(self, engine: LLMEngine, *, exit_threshold: float, exits: str) -> RunOptions:
        """What a run on that engine records of it."""
        point, executables = self.point, engine.runner.executables
        return RunOptions(
            num_planes=point.num_planes,
            max_num_batched_tokens=point.budget,
            max_num_seqs=point.max_num_seqs,
            prefill_chunk_size=point.chunk_size,
            block_size=point.block_size,
            num_blocks=executables.shape.num_blocks,
            dtype=self.loaded.dtype,
            kv_dtype=str(executables.shape.kv_dtype),
            attention_backend=executables.backend,
            layers=executables.layers,
            exit_threshold=exit_threshold,
            exits=exits,
            min_coda_batch_size=engine.config.min_coda_batch_size,
            model=point.model,
        )
