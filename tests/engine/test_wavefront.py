"""Several chunks of one prompt in a launch: what the engine says does not change, and when."""

import numpy as np
import pytest
from engines import (
    check_idle,
    complete,
    drain,
    fail_once,
    make_engine,
    run_params,
    second_fixture_is_slow,
)

from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions, FinishReason, ItemKind, LaunchKind, wavefront_policy

LONG = list(range(60))


def engine_of(folder, window=None, chunk=7, **options):
    """Chunks of 7 and a window of 4 have the shape of other tests' engines of this policy."""
    policy = wavefront_policy(window)
    return make_engine(folder, policy=policy, prefill_chunk_size=chunk, **options)


def num_chunks_together(record):
    """The most prompt items of one request in a launch."""
    names = [
        (item.request_id, item.sample_index)
        for item in record.items
        if item.kind is ItemKind.PROMPT
    ]
    return max(map(names.count, names), default=0)


@second_fixture_is_slow
@pytest.mark.parametrize(
    ("window", "chunk"),
    # Every window and chunk size compiles a ladder of its own.
    [
        (4, 7),
        pytest.param(2, 3, marks=pytest.mark.long),
        *(
            pytest.param(*sizes, marks=pytest.mark.slow)
            for sizes in ((2, 7), (3, 3), (3, 7), (4, 3))
        ),
    ],
)
def test_every_golden_run_is_exact_at_every_window_and_chunk_size(golden, window, chunk):
    engine = engine_of(golden.folder, window, chunk)
    prompts = [golden.prompts[run["prompt"]] for run in golden.runs]
    completions = complete(engine, prompts, [run_params(run) for run in golden.runs])
    for run, completion in zip(golden.runs, completions, strict=True):
        assert list(completion.token_ids) == run["token_ids"]
        assert list(completion.exit_depths) == run["exit_depths"]
    records = engine.runner.records
    assert max(map(num_chunks_together, records)) == window
    assert any(record.is_mixed and num_chunks_together(record) > 1 for record in records)


def test_one_prompt_alone_takes_n_and_p_less_1_launches(tiny_folder):
    engine = engine_of(tiny_folder)
    complete(engine, [LONG], [SamplingParams(max_tokens=1)])
    assert engine.stats().num_launches[LaunchKind.RECURRENT] == 9 + 4 - 1
    assert engine.stats().num_launches[LaunchKind.PREFILL] == 0


def test_samples_of_one_prompt_compute_it_each_and_agree(tiny_folder):
    """Without the prefix cache nobody waits for anybody."""
    engine = engine_of(tiny_folder)
    alone, *_ = complete(engine, [LONG], [SamplingParams(max_tokens=6)])
    params = SamplingParams(max_tokens=6, n=3, temperature=1.0, top_k=1, seed=4)
    engine.add_request("three", LONG, params)
    completions = []
    while engine.has_unfinished_requests():
        completions += engine.step().completions
    assert [done.token_ids for done in completions] == [alone.token_ids] * 3
    assert {done.num_cached_tokens for done in completions} == {0}


def test_an_abort_in_the_middle_frees_every_chunk_and_disturbs_nobody(square_golden):
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    engine = engine_of(square_golden.folder)
    numbers_of_chunks = set()
    for num_steps in range(12):
        engine.add_request("keep", prompt, run_params(run))
        engine.add_request("drop", LONG, SamplingParams(max_tokens=30))
        for _ in range(num_steps):
            engine.step()
        dropped = engine.scheduler.unfinished_request("drop")
        numbers_of_chunks.add(len(dropped.prompt_items))
        (ended,) = engine.abort("drop")
        assert ended.finish_reason is FinishReason.ABORT
        assert not dropped.prompt_items
        assert list(drain(engine)["keep"].token_ids) == run["token_ids"]
        check_idle(engine)
    # A chunk that runs its last depth gives its place back when it is handed out.
    assert numbers_of_chunks == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("method", "message"),
    [("pack", "injected into pack"), ("launch", "device state was lost")],
)
def test_a_launch_of_several_chunks_that_fails_ends_its_request_once(
    square_golden, monkeypatch, method, message
):
    run = square_golden.runs[0]
    engine = engine_of(square_golden.folder)

    def has_several(argument):
        batch = argument if method == "pack" else argument.batch
        return len(batch.items) > len({item.request for item in batch.items})

    state = fail_once(monkeypatch, method, has_several)
    engine.add_request("prompt", LONG, SamplingParams(max_tokens=2))
    completions = []
    while engine.has_unfinished_requests():
        completions += engine.step().completions
    assert state["has_failed"]
    assert [done.request_id for done in completions] == ["prompt"]
    assert message in completions[0].error
    check_idle(engine)
    engine.add_request("after", square_golden.prompts[run["prompt"]], run_params(run))
    assert list(drain(engine)["after"].token_ids) == run["token_ids"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.long
def test_in_deterministic_mode_the_bits_are_those_of_mixed(tiny_folder, dtype):
    """More prompt items in a launch are other shapes of its metadata, not of its arithmetic."""
    prompts = [LONG[first:] for first in (0, 3, 20, 41, 55)]
    params = [SamplingParams(max_tokens=8, exit=ExitOptions(threshold=0.5, min_loops=1))] * 5
    options = {"dtype": dtype, "deterministic": True, "prefill_chunk_size": 7}
    found = []
    for policy in ("mixed", wavefront_policy()):
        engine = make_engine(tiny_folder, policy=policy, prefix_caching=False, **options)
        completions = complete(engine, prompts, params)
        found.append(
            [
                (done.token_ids, done.exit_depths, np.asarray(done.logprobs, np.float32).tobytes())
                for done in completions
            ]
        )
    assert max(map(num_chunks_together, engine.runner.records)) == 4
    assert found[0] == found[1]


def test_prefix_caching_is_off_and_said_so(tiny_folder, caplog):
    with caplog.at_level("INFO", logger="looped"):
        engine = engine_of(tiny_folder)
    assert "prefix caching is off, which policy wavefront does without" in caplog.text
    (first,) = complete(engine, [LONG], [SamplingParams(max_tokens=2)])
    (second,) = complete(engine, [LONG], [SamplingParams(max_tokens=2)])
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 0)
    assert first.token_ids == second.token_ids


def test_the_prompt_pool_and_its_part_of_the_memory_plan_grow_with_the_window(tiny_folder):
    plain = make_engine(tiny_folder, prefill_chunk_size=7)
    for window, places in ((1, 8), (3, 24), (None, 32)):
        engine = engine_of(tiny_folder, window)
        assert engine.runner.prompt_pool.num_free == places
        state, plan = engine.runner.state, engine.memory_plan
        assert state.prompt_hidden.shape == (places, 7, 64)
        assert plan.prompt_state == state.hidden.nbytes + state.prompt_hidden.nbytes
        assert plan.prompt_state - plain.memory_plan.prompt_state == (places - 8) * 7 * 64 * 4
    assert engine_of(tiny_folder, 1).runner.executables.shape == plain.runner.executables.shape
