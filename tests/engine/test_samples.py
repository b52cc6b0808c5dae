"""Several samples of one prompt: their draws, what they share, and how they end."""

import numpy as np
import pytest
from engines import check_idle, complete, drain_samples, loaded_model, make_engine
from numpy_sampler import numpy_draw

from looped.errors import UsageError
from looped.reference import generate
from looped.sampling_params import SamplingParams
from looped.sched import FinishReason, ItemKind

PROMPT = [5, 9, 2, 40, 7, 7, 30, 12, 55, 3, 8, 20, 41, 6, 17, 28, 33, 1, 50]
"""One full block of 16 to share, and three tokens."""
DRAWN = SamplingParams(max_tokens=8, temperature=1.3, top_k=20, seed=7, n=4)


def run(engine, params=DRAWN, prompt=PROMPT):
    engine.add_request("a", prompt, params)
    samples = drain_samples(engine)
    return [samples["a", index] for index in range(params.n)]


def test_each_sample_is_the_numpy_samplers(tiny_folder):
    model = loaded_model(tiny_folder).model
    for index, done in enumerate(run(make_engine(tiny_folder))):
        reference = generate(
            model, PROMPT, max_tokens=DRAWN.max_tokens, forced_token_ids=done.token_ids
        )
        for position, token in enumerate(reference):
            outputs = list(done.token_ids[:position])
            drawn = numpy_draw(token.logits, PROMPT, outputs, DRAWN, index)
            assert done.token_ids[position] == drawn, (index, position)


def test_sample_0_is_that_of_n_1_and_the_others_differ(tiny_folder):
    engine = make_engine(tiny_folder)
    samples = run(engine)
    (alone,) = complete(engine, [PROMPT], [SamplingParams(**{**vars(DRAWN), "n": 1})])
    assert samples[0].token_ids == alone.token_ids
    assert len({done.token_ids for done in samples}) == 4
    assert {done.seed for done in samples} == {7}


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_the_prompt_is_computed_once(tiny_folder, policy):
    """One full block is shared; three rows a sample are computed again, and nothing else."""
    engine = make_engine(tiny_folder, policy=policy)
    samples = run(engine)
    assert [done.num_cached_tokens for done in samples] == [0, 16, 16, 16]
    num_rows = np.zeros(4, int)
    for record in engine.runner.records:
        for item in record.items:
            if item.kind is ItemKind.PROMPT:
                num_rows[item.sample_index] += item.num_rows * record.num_passes
    assert num_rows.tolist() == [19 * 4, 3 * 4, 3 * 4, 3 * 4]


def test_samples_do_not_depend_on_policy_cache_or_neighbours(tiny_folder):
    expected = [done.token_ids for done in run(make_engine(tiny_folder))]
    for options in ({"policy": "atomic"}, {"policy": "separate"}, {"prefix_caching": False}):
        engine = make_engine(tiny_folder, **options)
        for index in range(3):
            neighbour = SamplingParams(max_tokens=5 + index, temperature=0.5, n=1 + index, seed=1)
            engine.add_request(f"other-{index}", PROMPT[index:], neighbour)
        engine.add_request("a", PROMPT, DRAWN)
        samples = drain_samples(engine)
        assert [samples["a", index].token_ids for index in range(4)] == expected
        assert len(samples) == 1 + 2 + 3 + 4


def test_more_samples_than_slots_and_penalties_of_their_own(tiny_folder):
    params = SamplingParams(
        max_tokens=6, temperature=1.0, seed=3, n=11, frequency_penalty=1.5, repetition_penalty=1.2
    )
    model = loaded_model(tiny_folder).model
    for index, done in enumerate(run(make_engine(tiny_folder), params)):
        reference = generate(model, PROMPT, max_tokens=6, forced_token_ids=done.token_ids)
        for position, token in enumerate(reference):
            outputs = list(done.token_ids[:position])
            assert done.token_ids[position] == numpy_draw(
                token.logits, PROMPT, outputs, params, index
            )


def test_only_sample_0_is_scored_and_the_others_take_hits(tiny_folder):
    params = SamplingParams(max_tokens=3, temperature=1.0, n=3, prompt_logprobs=0)
    samples = run(make_engine(tiny_folder), params)
    assert [len(done.prompt_scores) for done in samples] == [1, 0, 0]
    assert [done.num_cached_tokens for done in samples] == [0, 16, 16]


def test_samples_end_together_or_one_by_one(tiny_folder):
    for step in range(0, 30, 4):
        engine = make_engine(tiny_folder)
        engine.add_request("a", PROMPT, DRAWN)
        for _ in range(step):
            engine.step()
        (one,) = engine.abort("a", 2)
        assert (one.sample_index, one.finish_reason) == (2, FinishReason.ABORT)
        with pytest.raises(UsageError, match="an id of its own"):
            engine.add_request("a", PROMPT, DRAWN)
        rest = engine.abort("a")
        assert sorted(done.sample_index for done in rest) == [0, 1, 3]
        assert engine.abort("a") == []
        check_idle(engine)
        engine.add_request("a", PROMPT, DRAWN)
        assert len(drain_samples(engine)) == 4


def test_a_request_that_is_refused_leaves_none_of_its_samples(tiny_folder):
    engine = make_engine(tiny_folder)
    with pytest.raises(UsageError, match="max_model_len"):
        engine.add_request("a", PROMPT * 10, DRAWN)
    assert not engine.has_unfinished_requests()
    engine.add_request("a", PROMPT, DRAWN)
    assert len(drain_samples(engine)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be in 1 to 128, got 0"),
        ({"n": 129}, "n must be in 1 to 128, got 129"),
        ({"n": True}, "n must be a whole number, got True"),
        (
            {"n": 2, "temperature": 1, "max_tokens": 0, "prompt_logprobs": 1},
            "n must be left out where nothing",
        ),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(UsageError, match=message):
        SamplingParams(**options)
