"""Engines on the tiny checkpoints, for tests: engines of one shape share their compiled steps.

The reference's loops are here, too, as one program for prompts of any length.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looped.config import ModelConfig
from looped.convert import LookaheadGate
from looped.engine.events import LogEvent
from looped.engine.llm_engine import LLMEngine
from looped.engine.observer import LaunchObserver, LaunchRecorder
from looped.engine.options import EngineConfig
from looped.engine.outputs import Completion
from looped.engine.runner import Runner
from looped.llm import LLM
from looped.loading import LoadedModel, load_folder
from looped.models.looped_model import LoopedModel
from looped.reference import DenseCache, embed, head_logits, run_loop
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions

# Small enough to compile in seconds, large enough that chunks, blocks and slots run out. Tests to
# which sizes do not matter take these: every other shape is a ladder to compile.
SMALL_SIZES = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "prefill_chunk_size": 16,
    "max_model_len": 96,
    "num_blocks": 4 * 8 * 6,
}
SMALL = EngineConfig(**SMALL_SIZES)
SMALL_FLAGS = tuple(
    text
    for name, size in SMALL_SIZES.items()
    for text in (f"--{name.replace('_', '-')}", str(size))
)
"""The same for a command."""
NUM_SLOTS = SMALL.max_num_seqs

# Every shape of device state compiles a ladder of its own, and each fixture its own again. The
# grouped-query fixture runs through some engine tests by default and through all with `-m slow`.
second_fixture_is_slow = pytest.mark.parametrize(
    "golden",
    ["ouro-tiny", pytest.param("ouro-tiny-gqa", marks=pytest.mark.slow)],
    indirect=True,
)


@functools.cache
def loaded_model(folder: Path, dtype: str = "float32", layers: str = "unrolled") -> LoadedModel:
    """A model with look-ahead heads, so that requests of every exit mode can be served."""
    loaded = load_folder(folder, dtype=dtype, layers=layers)
    return replace(loaded, lookahead_gate=random_gate(loaded.config))


def random_gate(config: ModelConfig, seed: int = 0) -> LookaheadGate:
    """Look-ahead heads whose scores spread around one half."""
    rng = np.random.default_rng(seed)
    num_heads = config.num_loops - 2
    weight = rng.standard_normal((num_heads, config.hidden_size)) * config.hidden_size**-0.5
    return LookaheadGate(
        weight.astype(np.float32), rng.standard_normal(num_heads).astype(np.float32)
    )


def make_engine(
    folder: Path,
    *,
    dtype: str = "float32",
    eos_token_ids: Iterable[int] = (),
    observer: LaunchObserver | None = None,
    **options: Any,
) -> LLMEngine:
    """An engine with `SMALL` options, changed by `options`."""
    config = replace(SMALL, **options)
    loaded = loaded_model(folder, dtype, config.layers or "unrolled")
    return LLMEngine(loaded, config, eos_token_ids=eos_token_ids, observer=observer)


def logged_engine(folder: Path, sink: Callable[[LogEvent], None], **options: Any) -> LLMEngine:
    """An engine of `make_engine`'s whose events go to `sink`."""
    return make_engine(folder, observer=LaunchRecorder(sink), **options)


def make_llm(folder: Path, **options: Any) -> LLM:
    """An `LLM` whose engine is one of `make_engine`'s."""
    llm = LLM(str(folder), dtype="float32", config=replace(SMALL, **options))
    ends = llm.engine._eos_token_ids
    llm.engine = make_engine(folder, eos_token_ids=ends, **options)
    return llm


def run_params(run: dict[str, Any]) -> SamplingParams:
    """Options of one run of golden.json."""
    if run["mode"] == "trace":
        exit_options = ExitOptions(trace=tuple(run["trace"]))
    else:
        exit_options = ExitOptions(
            mode=ExitMode(run["mode"]),
            threshold=run["threshold"],
            min_loops=run["min_loops"],
            max_loops=run.get("max_loops"),
        )
    return SamplingParams(max_tokens=len(run["token_ids"]), exit=exit_options)


def drain(engine: LLMEngine) -> dict[str, Completion]:
    """Runs an engine until nothing is left; completions by id, of requests with one sample each."""
    samples = drain_samples(engine)
    assert all(sample_index == 0 for _, sample_index in samples)
    return {request_id: completion for (request_id, _), completion in samples.items()}


def drain_samples(engine: LLMEngine) -> dict[tuple[str, int], Completion]:
    """Runs an engine until nothing is left; checks that nothing is held then."""
    completions: dict[tuple[str, int], Completion] = {}
    while engine.has_unfinished_requests():
        for completion in engine.step().completions:
            name = completion.request_id, completion.sample_index
            assert name not in completions
            completions[name] = completion
    check_idle(engine)
    return completions


def check_idle(engine: LLMEngine) -> None:
    """Zero blocks, slots and prompt places in use."""
    stats = engine.stats()
    assert (stats.num_used_blocks, stats.num_active, stats.num_waiting) == (0, 0, 0)
    assert engine.scheduler.num_free_blocks == stats.num_blocks
    num_places = engine.runner.executables.shape.num_prompt_places
    assert engine.runner.prompt_pool.num_free == num_places


def complete(
    engine: LLMEngine, prompts: list[list[int]], params: list[SamplingParams]
) -> list[Completion]:
    """All prompts at once, results in order."""
    for index, (prompt, options) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(index), prompt, options)
    completions = drain(engine)
    return [completions[str(index)] for index in range(len(prompts))]


PADDED_ROWS = 64
"""Rows behind a prompt come after it, so none of its own sees them."""


def logits_and_gates(model: LoopedModel, prompt: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """[P S V] logits and [P S] gates of every loop."""
    token_ids = np.zeros(PADDED_ROWS, np.int32)
    token_ids[: len(prompt)] = prompt
    rows, positions = embed(model, token_ids), np.arange(PADDED_ROWS)
    cache = DenseCache.zeros(model, PADDED_ROWS)
    logits, gates = [], []
    for depth in range(model.config.num_loops):
        rows, gate, cache = run_loop(model, rows, positions, depth, cache)
        logits.append(np.asarray(head_logits(model, rows))[: len(prompt)])
        gates.append(np.asarray(gate)[: len(prompt)])
    return np.stack(logits), np.stack(gates)


class InjectedError(Exception):
    """Raised by tests inside the engine."""


def fail_once(
    monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[[Any], bool]
) -> dict[str, bool]:
    """Makes a Runner method raise the first time `when(argument)` holds."""
    original, state = getattr(Runner, method), {"has_failed": False}

    def maybe_fail(runner: Runner, argument: Any) -> Any:
        if not state["has_failed"] and when(argument):
            state["has_failed"] = True
            raise InjectedError(f"injected into {method}")
        return original(runner, argument)

    monkeypatch.setattr(Runner, method, maybe_fail)
    return state
