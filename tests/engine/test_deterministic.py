"""--deterministic: the same bits alone or in a crowd, under any schedule."""

import random
from dataclasses import replace

import numpy as np
import pytest
from engines import (
    check_idle,
    complete,
    drain,
    loaded_model,
    make_engine,
    run_params,
    second_fixture_is_slow,
)

from looped.measure.divergence import first_divergence
from looped.reference import generate
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, LaunchKind, all_rungs, ladders_for

POLICIES = ("mixed", "separate", "atomic")
# Prompts share a beginning, so that the prefix cache has something to give.
SHARED = [17, 301, 44, 8, 250, 99, 123, 77, 31, 405, 6, 350, 210, 425, 98, 275, 351, 372]
TARGETS = {
    "greedy": ([*SHARED, 5, 6, 7, 8], SamplingParams(max_tokens=8)),
    "adaptive": (
        SHARED[:9],
        SamplingParams(max_tokens=8, exit=ExitOptions(threshold=0.5, min_loops=1)),
    ),
    "drawn from all": (
        SHARED[3:11],
        SamplingParams(max_tokens=8, temperature=1.5, seed=6),
    ),
    "drawn": (
        SHARED + list(range(100, 120)),
        SamplingParams(max_tokens=8, temperature=1.2, top_p=0.9, seed=5),
    ),
}


def neighbours(rng):
    """Requests with other options, to sit beside the targets."""
    for index in range(rng.randint(0, 6)):
        yield (
            f"neighbour-{index}",
            SHARED[: rng.randint(1, 18)] + [rng.randrange(512) for _ in range(rng.randint(0, 40))],
            SamplingParams(
                max_tokens=rng.randint(1, 10),
                temperature=rng.choice([0.0, 0.8]),
                top_k=rng.choice([None, 3]),
                top_p=rng.choice([1.0, 0.7]),
                seed=rng.randrange(1000),
                exit=ExitOptions(
                    mode=rng.choice([ExitMode.OURO, ExitMode.RANDOM_LOOKAHEAD]),
                    threshold=rng.choice([0.4, 1.0]),
                ),
            ),
        )


def bits(completion):
    """Everything of a completion that arithmetic could touch; floats as their bits."""
    return (
        completion.token_ids,
        completion.exit_depths,
        np.asarray(completion.logprobs, np.float32).tobytes(),
    )


def engine_for(folder, dtype, rng, chunks):
    policy = rng.choice(POLICIES)
    return make_engine(
        folder,
        dtype=dtype,
        deterministic=True,
        policy=policy,
        prefill_chunk_size=rng.choice(chunks),
        prefix_caching=rng.random() < 0.5,
        prompt_shortcut=rng.choice([True, False]) if policy == "mixed" else None,
    )


def run_schedule(engine, requests, rng):
    """Adds requests in a random order, with random steps between them."""
    completions = {}
    for name, prompt, params in rng.sample(requests, len(requests)):
        engine.add_request(name, prompt, params)
        for _ in range(rng.randint(0, 6)):
            completions |= {done.request_id: done for done in engine.step().completions}
    completions |= drain(engine)
    return completions


@pytest.mark.parametrize(
    ("dtype", "num_schedules", "chunks"),
    [
        # Every chunk size of every type is another set of programs to compile.
        ("bfloat16", 12, (16,)),
        ("float32", 15, (7, 16)),
        pytest.param("bfloat16", 20, (7, 16), marks=pytest.mark.long),
        pytest.param("bfloat16", 50, (7, 16), marks=pytest.mark.slow),
    ],
)
def test_a_request_has_the_same_bits_alone_and_in_any_schedule(
    tiny_folder, dtype, num_schedules, chunks
):
    rng = random.Random(3)
    alone = {}
    for name, (prompt, params) in TARGETS.items():
        engine = engine_for(tiny_folder, dtype, rng, chunks)
        engine.add_request(name, prompt, params)
        alone[name] = bits(drain(engine)[name])
    seen_policies, num_hits, num_mixed, num_split = set(), 0, 0, 0
    for _ in range(num_schedules):
        engine = engine_for(tiny_folder, dtype, rng, chunks)
        requests = [(name, *target) for name, target in TARGETS.items()] + list(neighbours(rng))
        completions = run_schedule(engine, requests, rng)
        for name in TARGETS:
            assert bits(completions[name]) == alone[name], name
            num_hits += completions[name].num_cached_tokens
        seen_policies.add(engine.config.policy)
        num_mixed += engine.stats().num_mixed_launches
        num_split += sum(record.num_calls > 1 for record in engine.runner.records)
        check_idle(engine)
    assert seen_policies == set(POLICIES)
    assert min(num_hits, num_mixed, num_split) > 0


def test_a_deterministic_engine_has_one_program_per_kind(tiny_folder):
    engine = make_engine(tiny_folder, deterministic=True, policy="atomic")
    rungs = all_rungs(ladders_for(engine.scheduler_config, is_deterministic=True))
    assert rungs == [(LaunchKind.RECURRENT, 32), (LaunchKind.SCORE, 32), (LaunchKind.HEAD, 8)]
    engine.add_request("a", list(range(20)), SamplingParams(max_tokens=2))
    drain(engine)
    prefills = [record for record in engine.runner.records if record.kind is LaunchKind.PREFILL]
    assert [record.num_calls for record in prefills] == [4, 4]
    assert {record.bucket for record in engine.runner.records} == {32}
    assert {record.head.bucket for record in engine.runner.records if record.head} == {8}
    assert engine.stats().num_uploads == sum(record.num_calls for record in engine.runner.records)


@second_fixture_is_slow
def test_goldens_hold_in_deterministic_mode(golden):
    runs = golden.runs[::4]
    prompts, params = [golden.prompts[run["prompt"]] for run in runs], list(map(run_params, runs))
    for policy in POLICIES:
        engine = make_engine(golden.folder, policy=policy, deterministic=True)
        for run, done in zip(runs, complete(engine, prompts, params), strict=True):
            assert list(done.token_ids) == run["token_ids"]
            assert list(done.exit_depths) == run["exit_depths"]


def margin_of(model, completion, index):
    """Top-1 margin of one output token, with its history replayed."""
    tokens = generate(
        model,
        completion.prompt_token_ids,
        max_tokens=index + 1,
        mode="trace",
        trace=completion.exit_depths,
        forced_token_ids=completion.token_ids,
    )
    second, first = np.sort(list(tokens)[index].logits)[-2:]
    return first - second


@pytest.mark.long
def test_without_the_mode_a_bfloat16_divergence_is_reported_with_its_margin(tiny_folder):
    """Two runs that differ are told apart by token, margin and exit; equal ones by nothing."""
    engine = make_engine(tiny_folder, dtype="bfloat16")
    prompt, params = TARGETS["adaptive"]
    engine.add_request("a", prompt, params)
    done = drain(engine)["a"]
    model = loaded_model(tiny_folder).model
    assert first_divergence(model, done, done).is_none
    other_token = replace(done, token_ids=(*done.token_ids[:3], 511, *done.token_ids[4:]))
    divergence = first_divergence(model, done, other_token)
    assert (divergence.token_index, divergence.exit_index) == (3, None)
    assert divergence.margin == pytest.approx(margin_of(model, done, 3))
    assert divergence.margin != pytest.approx(margin_of(model, done, 2))
    other_exit = replace(done, exit_depths=(4, 5 - done.exit_depths[1], *done.exit_depths[2:]))
    assert first_divergence(model, done, other_exit).exit_index == 1
    shorter = replace(done, token_ids=done.token_ids[:5], exit_depths=done.exit_depths[:5])
    assert first_divergence(model, done, shorter).token_index == 5
