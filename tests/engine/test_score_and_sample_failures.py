"""Launches that fail where a request is more than one: its scores, and several samples."""

import numpy as np
import pytest
from engines import NUM_SLOTS, complete, drain, drain_samples, fail_once, make_engine, run_params

from looped.sampling_params import SamplingParams
from looped.sched import Batch, FinishReason, LaunchKind


def is_score(argument):
    """Whether a batch, or a packed or running launch, is a score."""
    batch = argument if isinstance(argument, Batch) else argument.batch
    return batch.launch is LaunchKind.SCORE


@pytest.mark.parametrize("method", ["pack", "launch", "collect"])
@pytest.mark.parametrize("is_every_loop", [False, True])
@pytest.mark.long
def test_a_score_launch_that_fails_ends_its_prompt_and_what_the_state_held(
    square_golden, monkeypatch, method, is_every_loop
):
    """A score that cannot be packed concerns its own prompt alone; later, the state is lost."""
    engine = make_engine(square_golden.folder)
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    scored = SamplingParams(
        max_tokens=2, prompt_logprobs=1, prompt_logprobs_every_loop=is_every_loop
    )
    state = fail_once(monkeypatch, method, is_score)
    engine.add_request("scored", list(range(40)), scored)
    neighbours = {f"neighbour {slot}" for slot in range(1, NUM_SLOTS)}
    for name in (*sorted(neighbours), "waiting"):
        engine.add_request(name, prompt, run_params(run))
    engine.add_request("scored too", list(range(40)), scored)
    completions = drain(engine)
    assert state["has_failed"]
    assert engine.stats().num_failed_launches == 1
    failed = {name for name, done in completions.items() if done.error}
    assert failed == {"scored"} | (set() if method == "pack" else neighbours)
    assert completions["scored"].finish_reason is FinishReason.ERROR
    assert f"injected into {method}" in completions["scored"].error
    for name in (neighbours | {"waiting"}) - failed:
        assert list(completions[name].token_ids) == run["token_ids"]
    (again,) = complete(engine, [list(range(40))], [scored])
    assert len(again.prompt_scores) == (4 if is_every_loop else 1)
    pairs = zip(again.prompt_scores, completions["scored too"].prompt_scores, strict=True)
    for expected, scores in pairs:
        assert len(scores.logprobs) == 39
        np.testing.assert_allclose(scores.logprobs, expected.logprobs, atol=1e-4)


SAMPLED_PROMPT = list(range(20))
"""A block of 16 that samples share, and four tokens."""
SAMPLES = SamplingParams(max_tokens=6, n=NUM_SLOTS, temperature=1.0, seed=5, ignore_eos=True)
"""As many as there are slots."""


def sample(engine):
    """Token ids of the samples of this prompt when nothing befalls them."""
    engine.add_request("samples", SAMPLED_PROMPT, SAMPLES)
    return [done.token_ids for _, done in sorted(drain_samples(engine).items())]


@pytest.mark.parametrize("method", ["pack", "launch", "collect"])
@pytest.mark.parametrize("num_launches", [0, 2, 6, 12])
@pytest.mark.long
def test_samples_end_with_the_launch_that_fails_and_waiting_requests_go_on(
    square_golden, monkeypatch, method, num_launches
):
    """A sample in every slot, at any stage: their prompt's block is cached already."""
    engine = make_engine(square_golden.folder)
    run = square_golden.runs[0]
    expected = sample(engine)
    engine.runner.records.clear()
    state = fail_once(monkeypatch, method, lambda _: len(engine.runner.records) >= num_launches)
    engine.add_request("samples", SAMPLED_PROMPT, SAMPLES)
    engine.add_request("waiting", square_golden.prompts[run["prompt"]], run_params(run))
    engine.add_request("samples too", SAMPLED_PROMPT, SAMPLES)
    completions = drain_samples(engine)
    assert state["has_failed"]
    assert engine.stats().num_failed_launches == 1
    failed = {name for name, done in completions.items() if done.error}
    assert failed == {("samples", index) for index in range(NUM_SLOTS)}
    assert list(completions["waiting", 0].token_ids) == run["token_ids"]
    assert [completions["samples too", index].token_ids for index in range(NUM_SLOTS)] == expected
    assert sample(engine) == expected  # the id is free again


@pytest.mark.parametrize("method", ["pack", "launch", "collect"])
@pytest.mark.parametrize("num_launches", [0, 1])
def test_samples_that_wait_for_the_first_go_on_when_that_fails(
    square_golden, monkeypatch, method, num_launches
):
    expected = sample(make_engine(square_golden.folder))
    engine = make_engine(square_golden.folder)
    fail_once(monkeypatch, method, lambda _: len(engine.runner.records) >= num_launches)
    engine.add_request("samples", SAMPLED_PROMPT, SAMPLES)
    completions = drain_samples(engine)
    samples = [completions["samples", index] for index in range(NUM_SLOTS)]
    assert [bool(done.error) for done in samples] == [True] + [False] * (NUM_SLOTS - 1)
    assert [done.token_ids for done in samples[1:]] == expected[1:]
    assert sample(engine) == expected
