"""Sampling on the device against a plain NumPy sampler on the same logits and the same noise."""

from functools import partial

import jax
import numpy as np
import pytest
from engines import complete, loaded_model, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_sampler import numpy_sample

from looped.errors import UsageError
from looped.programs.sampling.forms import CONDITIONAL
from looped.programs.sampling.sampler import (
    SamplingRows,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    raw_logprobs,
    sample,
)
from looped.reference import generate
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

VOCAB = 64
ROWS = 8


def sampling_rows(options):
    """`SamplingRows` of tuples in the order of `numpy_sample`; no edits."""
    temperature, top_k, top_p, min_p, seed, output_index, sample_index = zip(*options, strict=True)
    idle = np.zeros(len(options))
    return SamplingRows(
        temperature=np.asarray(temperature, np.float32),
        top_k=np.asarray(top_k, np.int32),
        top_p=np.asarray(top_p, np.float32),
        min_p=np.asarray(min_p, np.float32),
        is_edited=idle.astype(np.int32),
        repetition_penalty=idle,
        presence_penalty=idle,
        frequency_penalty=idle,
        min_tokens=idle.astype(np.int32),
        seed=np.asarray([(s >> 32, s & 0xFFFFFFFF) for s in seed], np.uint32),
        sample_index=np.asarray(sample_index, np.int32),
        output_index=np.asarray(output_index, np.int32),
        wants_top=idle.astype(np.int32),
    )


# One program for each, instead of one for each of their operations.
jitted_sample = jax.jit(partial(sample, CONDITIONAL))
keep_min_p, keep_top_k, keep_top_p = map(jax.jit, (keep_min_p, keep_top_k, keep_top_p))

option = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.integers(1, VOCAB),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    st.integers(0, 2**63 - 1),
    st.integers(0, 100),
    st.integers(0, 3),
)


@settings(max_examples=200, deadline=None)
@given(options=st.lists(option, min_size=ROWS, max_size=ROWS), logit_seed=st.integers(0, 2**31))
def test_every_row_equals_a_plain_numpy_sampler(options, logit_seed):
    logits = np.random.default_rng(logit_seed).normal(0, 3, (ROWS, VOCAB)).astype(np.float32)
    got = jitted_sample(logits, sampling_rows(options))
    assert got.tolist() == [
        numpy_sample(row, *options) for row, options in zip(logits, options, strict=True)
    ]


@settings(max_examples=50, deadline=None)
@given(options=st.lists(option, min_size=ROWS, max_size=ROWS), place=st.integers(0, ROWS - 1))
def test_a_row_draws_the_same_alone_and_in_any_place_of_any_batch(options, place):
    logits = np.random.default_rng(3).normal(0, 3, (ROWS, VOCAB)).astype(np.float32)
    alone_logits = np.zeros_like(logits)
    alone_logits[0] = logits[place]
    greedy = (0.0, VOCAB, 1.0, 0.0, 0, 0, 0)
    alone = jitted_sample(alone_logits, sampling_rows([options[place]] + [greedy] * (ROWS - 1)))
    assert int(alone[0]) == int(jitted_sample(logits, sampling_rows(options))[place])


def test_top_k_keeps_all_that_tie_with_the_last():
    logits = np.asarray([[3.0, 1.0, 2.0, 2.0, 2.0, -1.0]])
    kept = np.isfinite(keep_top_k(logits, np.asarray([2])))[0]
    assert kept.tolist() == [True, False, True, True, True, False]


def test_top_k_orders_negative_zero_and_tiny_logits_as_floats():
    logits = np.asarray([[-5.0, -0.5, -1e-30, 0.0, 1e-30, -4.0]])
    for k, expected in ((1, {4}), (2, {3, 4}), (3, {2, 3, 4}), (4, {1, 2, 3, 4})):
        assert set(np.flatnonzero(np.isfinite(keep_top_k(logits, np.asarray([k])))[0])) == expected


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(np.asarray([probabilities], np.float32))
    for p, count in ((0.4, 1), (0.6, 2), (0.9, 3), (0.97, 4)):
        assert np.isfinite(keep_top_p(logits, np.asarray([p])))[0].sum() == count


@pytest.mark.parametrize("size", [512, 49_152])
def test_a_neighbours_top_p_takes_nothing_from_a_row_without_one(size):
    """A float32 sum may reach 1 before the last token: p = 1 must not look at it."""
    logits = np.random.default_rng(0).normal(0, 3, (2, size)).astype(np.float32)
    kept = np.isfinite(keep_top_p(np.asarray(logits), np.asarray([1.0, 0.9])))
    assert kept[0].all()
    assert not kept[1].all()


def test_top_p_keeps_everything_where_rounding_never_reaches_p():
    logits = np.zeros((1, 7))
    assert np.isfinite(keep_top_p(logits, np.asarray([0.9999999])))[0].all()


def test_min_p_keeps_what_is_likely_enough_beside_the_most_likely():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(np.asarray([probabilities], np.float32))
    for p, count in ((0.0, 4), (0.09, 4), (0.2, 3), (0.5, 2), (0.7, 1), (1.0, 1)):
        assert np.isfinite(keep_min_p(logits, np.asarray([p])))[0].sum() == count


def test_logprobs_are_those_of_the_raw_logits():
    logits = np.random.default_rng(0).normal(0, 5, (4, VOCAB)).astype(np.float32)
    ids = np.array([0, 5, 10, 63])
    wide = logits.astype(np.float64)
    expected = wide[np.arange(4), ids] - np.log(np.exp(wide).sum(-1))
    np.testing.assert_allclose(jax.jit(raw_logprobs)(logits, ids), expected, atol=1e-5)


def test_a_batch_of_greedy_rows_draws_and_searches_nothing():
    """The work sits behind conditions on data: the compiled step holds them, one inside one."""
    text = (
        jax.jit(partial(sample, CONDITIONAL))
        .lower(np.zeros((ROWS, VOCAB)), sampling_rows([(0.0, VOCAB, 1.0, 0.0, 0, 0, 0)] * ROWS))
        .as_text()
    )
    outside = text.split("stablehlo.case")[0]
    assert text.count("stablehlo.case") >= 1 or text.count("stablehlo.if") >= 1
    assert "threefry" not in outside
    assert "stablehlo.sort" not in text


SEEDED = SamplingParams(max_tokens=12, temperature=1.3, top_k=40, top_p=0.95, seed=2**40 + 17)


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_seeded_draws_are_equal_alone_and_in_any_crowd_under_every_policy(tiny_folder, policy):
    def others(count):
        return [
            SamplingParams(max_tokens=9, temperature=0.9, top_p=0.8, seed=index)
            for index in range(count)
        ]

    prompt = list(range(5, 45))
    (alone,) = complete(make_engine(tiny_folder, policy="separate"), [prompt], [SEEDED])
    for place in (0, 3, 9):
        params = others(9)
        params.insert(place, SEEDED)
        prompts = [[index, 2, 3] for index in range(9)]
        prompts.insert(place, prompt)
        engine = make_engine(tiny_folder, policy=policy)
        crowd = complete(engine, prompts, params)
        assert (engine.stats().num_mixed_launches > 0) == (policy == "mixed")
        assert crowd[place].token_ids == alone.token_ids
        assert crowd[place].seed == SEEDED.seed


def test_a_drawn_token_is_the_numpy_samplers_on_the_reference_logits(tiny_folder):
    params = SamplingParams(
        max_tokens=1, temperature=1.7, top_k=30, top_p=0.9, seed=99, exit=ExitOptions()
    )
    prompt = [11, 12, 13]
    (token,) = generate(loaded_model(tiny_folder).model, prompt, max_tokens=1)
    (completion,) = complete(make_engine(tiny_folder), [prompt], [params])
    assert completion.token_ids == (numpy_sample(token.logits, 1.7, 30, 0.9, 0.0, 99, 0),)


def test_without_a_seed_draws_are_fresh_and_the_seed_repeats_them(tiny_folder):
    engine = make_engine(tiny_folder)
    unseeded = SamplingParams(max_tokens=16, temperature=2.0)
    first, second = complete(engine, [[5, 6]] * 2, [unseeded] * 2)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = SamplingParams(max_tokens=16, temperature=2.0, seed=first.seed)
    assert complete(engine, [[5, 6]], [again])[0].token_ids == first.token_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, or 0 with prompt_logprobs"),
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"temperature": 1e-30}, "1e-05 to 100000, got 1e-30"),
        ({"temperature": 1e39}, "temperature must be 0"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"priority": "high"}, "priority must be a whole number"),
        ({"ignore_eos": "no"}, "ignore_eos must be true or false"),
        ({"stop_token_ids": "12"}, "collection of token ids"),
        ({"stop_token_ids": [1.5]}, "must be whole numbers"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"top_p": 0.0}, "top_p must be in 1e-06 to 1"),
        ({"top_p": 1e-39}, "top_p must be in"),
        ({"top_p": 1.1}, "top_p must be in"),
        ({"min_p": -0.1}, "min_p must be in 0 to 1, got -0.1"),
        ({"min_p": float("nan")}, "min_p must be in 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be in 0.1 to 10, got 0.0"),
        ({"repetition_penalty": "2"}, "repetition_penalty must be a number"),
        ({"presence_penalty": 2.5}, "presence_penalty must be in -2 to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty must be in -2 to 2"),
        ({"min_tokens": -1}, "min_tokens must be at least 0, got -1"),
        ({"max_tokens": 64, "min_tokens": 65}, "min_tokens must be in 0 to max_tokens, 64; got 65"),
        ({"min_tokens": 1.0}, "min_tokens must be a whole number"),
        ({"logit_bias": [1]}, "logit_bias must map token ids to numbers"),
        ({"logit_bias": {"1": 2}}, "logit_bias must map token ids to numbers, got '1': 2"),
        ({"logit_bias": {1: 101}}, "logit_bias must be in -100 to 100, got 101 for token 1"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias must be in -100 to 100"),
        ({"logit_bias": dict.fromkeys(range(301), 1)}, "at most 300 ids, got 301"),
        ({"logprobs": 21}, "logprobs must be in 0 to 20, or left out; got 21"),
        ({"logprobs": -1}, "logprobs must be in 0 to 20"),
        ({"logprobs": True}, "logprobs must be a whole number"),
        ({"seed": -1}, "seed must be 0 to"),
        ({"stop": 5}, "stop must be a text or a list of texts, got 5"),
        ({"stop": ["a", 5]}, r"stop must be a text or a list of texts, got \['a', 5\]"),
        ({"stop": {"a": "b"}}, "stop must be a text or a list of texts"),
        ({"stop": ["a"] * 17}, "stop takes at most 16 texts, got 17"),
        ({"stop": ["a", ""]}, "stop takes texts of 1 to 256 characters, got 0"),
        ({"stop": "a" * 257}, "stop takes texts of 1 to 256 characters, got 257"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output needs a stop string"),
        (
            {"stop": "a", "include_stop_str_in_output": 1},
            "include_stop_str_in_output must be true or false, got 1",
        ),
        ({"seed": 2**63}, "seed must be 0 to"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, message):
    with pytest.raises(UsageError, match=message):
        SamplingParams(**options)


def test_one_stop_string_needs_no_list():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b" * 256]).stop == ("a", "b" * 256)
