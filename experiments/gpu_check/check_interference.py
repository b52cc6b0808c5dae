"""Atomic, separate and mixed with prompts arriving under decoders: counts and plain wall times."""

import statistics
import time
from dataclasses import replace

from engines_here import SMALL, random_model
from report import Outcome, Recorder

from looped.engine import LLMEngine
from looped.engine_config import EngineConfig
from looped.pallas_kernels import resolve_backend
from looped.sampling_params import SamplingParams

POLICIES = ("mixed", "atomic", "separate")


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    sizes = (2, 20, 24, 40) if is_rehearsal else (8, 512, 200, 800)
    platform = "cpu" if is_rehearsal else "gpu"
    backend = resolve_backend("auto", platform)
    loaded = random_model(is_rehearsal=is_rehearsal, layers="unrolled")
    config = EngineConfig(
        max_num_seqs=16, max_num_batched_tokens=256, max_model_len=2048, kv_cache_dtype="bfloat16",
        num_blocks=4 * 16 * 128, attention_backend=backend, layers="unrolled",
    )  # fmt: skip
    if is_rehearsal:
        config = replace(SMALL, kv_cache_dtype="float32")
    recorder.plan(list(POLICIES))
    executables = None
    for policy in POLICIES:
        engine = LLMEngine(loaded, replace(config, policy=policy), executables=executables)
        executables = engine.runner.executables
        recorder.check(policy, measure, engine, sizes)


def measure(engine: LLMEngine, sizes: tuple[int, int, int, int]) -> Outcome:
    """The workload twice: the first time compiles what it needs, the second one counts."""
    play(engine, *sizes, name="warm-up")
    num_compiled = engine.stats().num_compilations
    is_sound, values = play(engine, *sizes, name="timed")
    values["compilations"] = engine.stats().num_compilations - num_compiled
    return is_sound and values["compilations"] == 0, values


def play(
    engine: LLMEngine,
    num_decoders: int,
    num_prompt_tokens: int,
    every: int,
    num_tokens: int,
    *,
    name: str,
) -> Outcome:
    """Decoders of `num_tokens` in all; a prompt arrives with every so many of their tokens."""
    before = engine.stats()
    per_decoder = -(-num_tokens // num_decoders)
    for index in range(num_decoders):
        params = SamplingParams(max_tokens=per_decoder, ignore_eos=True)
        engine.add_request(f"{name} decoder-{index}", list(range(3, 11)), params)
    last: dict[str, float] = {}
    gaps: list[float] = []
    num_seen = num_prompts = 0
    started = time.perf_counter()
    while engine.has_unfinished_requests():
        output = engine.step()
        now = time.perf_counter()
        if failed := [done.error for done in output.completions if done.error is not None]:
            raise RuntimeError(failed[0])
        for event in output.tokens:
            if " decoder-" not in event.request_id:
                continue
            if event.request_id in last:
                gaps.append(now - last[event.request_id])
            last[event.request_id] = now
            num_seen += 1
        if num_seen >= (num_prompts + 1) * every and num_seen < num_tokens - every // 2:
            # Every prompt its own tokens: nothing is shared with the last one.
            prompt = [
                (7 * index + 13 * num_prompts + len(name)) % 500 + 3
                for index in range(num_prompt_tokens)
            ]
            params = SamplingParams(max_tokens=1, ignore_eos=True)
            engine.add_request(f"{name} prompt-{num_prompts}", prompt, params)
            num_prompts += 1
    seconds = time.perf_counter() - started
    stats = engine.stats()
    gaps.sort()
    return num_prompts > 0, {
        "prompts": num_prompts,
        "gap median, ms": round(statistics.median(gaps) * 1e3, 2),
        "gap p99, ms": round(gaps[int(0.99 * (len(gaps) - 1))] * 1e3, 2),
        "gap max, ms": round(gaps[-1] * 1e3, 2),
        "tokens/s": round(num_seen / seconds, 1),
        "launches": sum(stats.num_launches.values()) - sum(before.num_launches.values()),
        "mixed launches": stats.num_mixed_launches - before.num_mixed_launches,
    }
