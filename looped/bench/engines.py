"""Engines of one point, on executables that they all share, and what must not disturb their runs.

Every run has an engine of its own: the state is fresh, and nothing is compiled.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import jax

from looped.engine.llm_engine import LLMEngine
from looped.engine.observer import LaunchObserver
from looped.loading import LoadedModel
from looped.programs.executables import Executables

from .engine_point import EnginePoint
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


@contextmanager
def collector_frozen() -> Iterator[None]:
    """Keeps Python's garbage collector off what is there already.

    What set-up leaves behind is long-lived, and going through it takes 0.1 s a time.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class BenchEngines:
    """Makes the engines of one point.

    Args:
        point: how they are built.
        loaded: its model.
        prompt_lengths: of all requests that the largest run of the point has; None compiles nothing
            ahead, so that the first run of a policy compiles just what it needs.
    """

    def __init__(
        self, point: EnginePoint, loaded: LoadedModel, prompt_lengths: Sequence[int] | None
    ) -> None:
        self.point = point
        self.loaded = loaded
        self._prompt_lengths = prompt_lengths
        self._executables: Executables | None = None
        self._warm_policies: set[str] = set()

    def build(self, policy: str, observer: LaunchObserver) -> LLMEngine:
        """A fresh engine, on what has been compiled; first of all what requests can reach."""
        gc.collect()  # the last run's engine: a device may not hold two pools
        config = self.point.engine_config(policy)
        engine = LLMEngine(self.loaded, config, executables=self._executables, observer=observer)
        self._executables = engine.runner.executables
        if self._prompt_lengths is not None and policy not in self._warm_policies:
            engine.warm_up(list(self._prompt_lengths), has_scores=False)
            self._warm_policies.add(policy)
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
            run_ahead=engine.scheduler_config.launches_ahead(engine.scheduler.policy),
            model=point.model,
        )
