"""The engine says what the oracle says: every golden run, under every policy and cache option."""

import functools
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from engines import (
    complete,
    drain,
    loaded_model,
    make_engine,
    run_params,
    second_fixture_is_slow,
)

from looped.programs.lookahead import random_head
from looped.reference import generate
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, LaunchKind

POLICIES = ("mixed", "separate", "atomic")


def assert_mixed(engine):
    """A mixed run without a mixed launch shows nothing."""
    is_mixing = engine.config.policy_name == "mixed"
    assert (engine.stats().num_mixed_launches > 0) == is_mixing


def assert_goldens(golden, completions):
    wrong = [
        {key: run[key] for key in ("prompt", "mode", "threshold")}
        for run, completion in zip(golden.runs, completions, strict=True)
        if list(completion.token_ids) != run["token_ids"]
        or list(completion.exit_depths) != run["exit_depths"]
    ]
    assert not wrong


def all_at_once(golden, **options):
    engine = make_engine(golden.folder, **options)
    prompts = [golden.prompts[run["prompt"]] for run in golden.runs]
    completions = complete(engine, prompts, [run_params(run) for run in golden.runs])
    assert_goldens(golden, completions)
    assert_mixed(engine)
    return engine


@second_fixture_is_slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "chunk",
    # Every chunk size compiles a ladder of its own.
    [*(pytest.param(chunk, marks=pytest.mark.slow) for chunk in (1, 3, 7, "all")), 16],
)
def test_all_prompts_at_once_at_every_chunk_size(golden, policy, chunk):
    sizes = (
        {"prefill_chunk_size": 64, "max_num_batched_tokens": 96}
        if chunk == "all"
        else {"prefill_chunk_size": chunk}
    )
    engine = all_at_once(golden, policy=policy, **sizes)
    stats = engine.stats()
    # One-token chunks are too few rows for the shortcut, and of whole prompts never as many come
    # together as fill a `prefill` bucket no worse than single passes.
    has_prefill = policy == "atomic" or (policy == "mixed" and chunk in (3, 7, 16))
    assert (stats.num_launches[LaunchKind.PREFILL] > 0) == has_prefill
    assert (stats.num_mixed_launches > 20) == (policy == "mixed")


@second_fixture_is_slow
@pytest.mark.parametrize(
    ("policy", "every"),
    [
        *((policy, 4) for policy in POLICIES),
        *(pytest.param(policy, 1, marks=pytest.mark.long) for policy in POLICIES),
    ],
)
def test_prompts_one_by_one(golden, policy, every):
    """A fourth of the runs by default, of every mode and prompt; all of them with `-m long`."""
    engine = make_engine(golden.folder, policy=policy, prefix_caching=False)
    completions, runs = [], golden.runs[::every]
    assert {run["prompt"] for run in runs} == {run["prompt"] for run in golden.runs}
    assert {run["mode"] for run in runs} == {run["mode"] for run in golden.runs}
    for run in runs:
        engine.add_request("only", golden.prompts[run["prompt"]], run_params(run))
        completions.append((run, drain(engine)["only"]))
    for run, completion in completions:
        assert list(completion.token_ids) == run["token_ids"]
        assert list(completion.exit_depths) == run["exit_depths"]


def test_the_kernels_say_the_same_in_their_interpreter(square_golden):
    """A few runs through one bucket, which is little to compile; all of them below."""
    engine = make_engine(square_golden.folder, attention_backend="pallas", deterministic=True)
    runs = square_golden.runs[:4]
    prompts = [square_golden.prompts[run["prompt"]] for run in runs]
    completions = complete(engine, prompts, [run_params(run) for run in runs])
    assert [list(completion.token_ids) for completion in completions] == [
        run["token_ids"] for run in runs
    ]
    assert_mixed(engine)


@pytest.mark.slow
def test_all_prompts_at_once_through_the_kernels_in_their_interpreter(golden):
    all_at_once(golden, attention_backend="pallas")


CACHE_OPTIONS = [
    pytest.param(4, True, False, marks=pytest.mark.slow),
    pytest.param(4, False, True, marks=pytest.mark.slow),
    (16, True, True),
    (16, False, False),
]


@pytest.mark.parametrize(
    ("policy", "prefix_caching", "incremental_kv"),
    [("mixed", True, True), ("separate", False, False), ("atomic", True, True)],
)
def test_every_cache_option_with_some_policy(square_golden, policy, prefix_caching, incremental_kv):
    check_cache_options(square_golden, policy, prefix_caching, incremental_kv)


@second_fixture_is_slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("block_size", "prefix_caching", "incremental_kv"), CACHE_OPTIONS)
@pytest.mark.long
def test_every_cache_option_with_every_policy(
    golden, policy, prefix_caching, incremental_kv, block_size
):
    check_cache_options(golden, policy, prefix_caching, incremental_kv, block_size)


def check_cache_options(golden, policy, prefix_caching, incremental_kv, block_size=16):
    engine = all_at_once(
        golden,
        policy=policy,
        prefix_caching=prefix_caching,
        incremental_kv=incremental_kv,
        block_size=block_size,
        num_blocks=4 * 8 * 96 // block_size,
    )
    assert (engine.stats().num_cached_prompt_tokens > 0) == prefix_caching


@second_fixture_is_slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.slow
def test_priority_and_a_scarce_pool_change_the_order_and_nothing_else(golden, policy):
    engine = make_engine(
        golden.folder,
        policy=policy,
        scheduling_policy="priority",
        max_num_seqs=16,
        num_blocks=4 * 14,
        kv_watermark=4,
    )
    # Later requests are the more urgent ones.
    params = [replace(run_params(run), priority=-index) for index, run in enumerate(golden.runs)]
    completions = complete(engine, [golden.prompts[run["prompt"]] for run in golden.runs], params)
    assert_goldens(golden, completions)
    assert_mixed(engine)
    first = [record.items[0].request_id for record in engine.runner.records]
    assert first[0] == str(len(golden.runs) - 1)
    assert first[-1] != first[0]


LOOKAHEAD_CASES = tuple(product(range(4), (0.3, 0.5, 0.7), (1, 3)))
"""Indices of prompts, thresholds and least loops."""


@functools.cache
def lookahead_references(folder, prompts, mode):
    """What the reference says in each of these cases."""
    loaded = loaded_model(folder)
    if mode is ExitMode.LOOKAHEAD:
        heads = {"lookahead_gate": loaded.lookahead_gate}
    else:
        heads = {"lookahead_head": random_head(loaded.config.hidden_size, seed=3)}
    return [
        list(
            generate(
                loaded.model,
                prompts[prompt],
                max_tokens=12,
                mode=mode,
                threshold=threshold,
                min_loops=min_loops,
                **heads,
            )
        )
        for prompt, threshold, min_loops in LOOKAHEAD_CASES
    ]


@second_fixture_is_slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", [ExitMode.RANDOM_LOOKAHEAD, ExitMode.LOOKAHEAD])
def test_look_ahead_leaves_where_the_reference_leaves(golden, policy, mode):
    engine = make_engine(golden.folder, policy=policy, lookahead_seed=3)
    prompts, params = [], []
    for prompt, threshold, min_loops in LOOKAHEAD_CASES:
        rule = {"mode": mode, "threshold": threshold, "min_loops": min_loops}
        prompts.append(golden.prompts[prompt])
        params.append(SamplingParams(max_tokens=12, exit=ExitOptions(**rule)))
    expected = lookahead_references(golden.folder, tuple(map(tuple, golden.prompts)), mode)
    for completion, tokens in zip(complete(engine, prompts, params), expected, strict=True):
        assert list(completion.exit_depths) == [token.exit_depth for token in tokens]
        assert list(completion.token_ids) == [token.token_id for token in tokens]
    depths = {depth for tokens in expected for token in tokens for depth in [token.exit_depth]}
    assert depths == {2, 3, 4}


def test_num_loops_one_to_four_share_a_batch_and_equal_themselves_alone(square_golden):
    params = [
        SamplingParams(max_tokens=10, exit=ExitOptions(max_loops=loops, min_loops=1, threshold=1.0))
        for loops in (1, 2, 3, 4)
    ]
    prompts = [square_golden.prompts[2]] * 4
    together = complete(make_engine(square_golden.folder), prompts, params)
    for prompt, options, crowd in zip(prompts, params, together, strict=True):
        (alone,) = complete(make_engine(square_golden.folder), [prompt], [options])
        assert crowd.token_ids == alone.token_ids
        assert set(crowd.exit_depths[1:]) == {options.exit.max_loops}


def test_every_logprob_is_that_of_the_raw_logits(square_golden):
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    (completion,) = complete(make_engine(square_golden.folder), [prompt], [run_params(run)])
    tokens = generate(
        loaded_model(square_golden.folder).model,
        prompt,
        max_tokens=len(run["token_ids"]),
        max_loops=run["max_loops"],
    )
    for got, token in zip(completion.logprobs, tokens, strict=True):
        logits = token.logits.astype(np.float64)
        want = logits[token.token_id] - np.log(np.sum(np.exp(logits)))
        assert got == pytest.approx(want, abs=1e-4)
