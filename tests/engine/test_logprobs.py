"""Log-probabilities of the most likely tokens, beside whatever is drawn."""

import jax
import numpy as np
import pytest
from engines import complete, drain, loaded_model, make_engine
from numpy_sampler import numpy_logprobs

from looped.programs.sampling.head_output import HeadOutput
from looped.programs.sampling.sampler import top_logprobs
from looped.reference import generate
from looped.sampling_params import SamplingParams
from looped.sched import InterfaceError

PROMPT = list(range(50, 75))


def check_against_numpy(folder, done, count):
    outputs = list(done.token_ids)
    reference = generate(
        loaded_model(folder).model,
        list(done.prompt_token_ids),
        max_tokens=len(outputs),
        forced_token_ids=outputs,
    )
    assert len(done.top_logprobs) == len(outputs)
    for token, listed, token_id, logprob in zip(
        reference, done.top_logprobs, outputs, done.logprobs, strict=True
    ):
        expected = numpy_logprobs(token.logits)
        assert [pair[0] for pair in listed] == np.argsort(-token.logits)[:count].tolist()
        for listed_id, listed_logprob in listed:
            assert listed_logprob == np.float32(listed_logprob)
            assert listed_logprob == pytest.approx(expected[listed_id], abs=1e-4)
        assert logprob == pytest.approx(expected[token_id], abs=1e-4)
        if token_id in dict(listed):
            assert dict(listed)[token_id] == logprob


def test_equal_logits_come_in_order_of_their_ids():
    token_ids, logprobs = jax.jit(top_logprobs, static_argnums=1)(
        np.asarray([[0.0, 2.0, 1.0, 2.0]]), 3
    )
    assert token_ids.tolist() == [[1, 3, 2]]
    expected = numpy_logprobs(np.array([0.0, 2.0, 1.0, 2.0]))[[1, 3, 2]]
    np.testing.assert_allclose(logprobs[0], expected, atol=1e-6)


def test_an_output_is_read_as_it_was_packed():
    output = HeadOutput(
        token_ids=np.asarray([7, 8]),
        logprobs=np.asarray([-0.5, -1.5]),
        is_finite=np.asarray([1, 0]),
        top_token_ids=np.asarray([[1, 2], [3, 4], [5, 6]]),
        top_logprobs=-np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    )
    unpacked = HeadOutput.unpack(np.asarray(jax.jit(HeadOutput.pack)(output)))
    assert unpacked.token_ids.tolist() == [7, 8]
    assert unpacked.logprobs.tolist() == [-0.5, -1.5]
    assert unpacked.is_finite.tolist() == [1, 0]
    assert unpacked.alternatives([2, None]) == [((1, -1.0), (3, -3.0)), None]
    assert unpacked.alternatives([0]) == [()]
    assert unpacked.alternatives([None, None]) is None


@pytest.mark.parametrize("count", [1, 5, 20])
def test_alternatives_are_the_reference_logits_whatever_is_drawn(tiny_folder, count):
    for options in ({}, {"temperature": 2.0, "top_k": 3, "logit_bias": {7: 50.0}, "seed": 1}):
        params = SamplingParams(max_tokens=8, logprobs=count, **options)
        (done,) = complete(make_engine(tiny_folder), [PROMPT], [params])
        check_against_numpy(tiny_folder, done, count)


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_each_request_gets_as_many_as_it_asks_for_in_one_read(tiny_folder, policy):
    counts = [None, 0, 3, 20, None, 1, 7, 0, None, 2]
    engine = make_engine(tiny_folder, policy=policy)
    params = [
        SamplingParams(
            max_tokens=9, logprobs=count, seed=index, temperature=1.5, presence_penalty=1.0
        )
        for index, count in enumerate(counts)
    ]
    # Prompts of two lengths, since the reference compiles a program for every length.
    prompts = [[index, *PROMPT[1 + index % 2 * 10 :]] for index in range(10)]
    completions = complete(engine, prompts, params)
    for count, done in zip(counts, completions, strict=True):
        if count is None:
            assert done.top_logprobs is None
        else:
            assert done.top_logprobs is not None
            check_against_numpy(tiny_folder, done, count)
    reads = {record.num_readbacks for record in engine.runner.records if record.head is not None}
    assert reads == {1}
    assert engine.stats().num_readbacks == engine.stats().num_heads


def test_asking_changes_no_token_and_no_bit(tiny_folder):
    def run(count):
        engine = make_engine(tiny_folder, deterministic=True)
        params = SamplingParams(max_tokens=9, logprobs=count, temperature=1.0, seed=4)
        (done,) = complete(engine, [PROMPT], [params])
        return done.token_ids, np.asarray(done.logprobs, np.float32).tobytes()

    assert run(None) == run(0) == run(20)


def test_events_and_completions_carry_them(tiny_folder):
    engine = make_engine(tiny_folder)
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=3, logprobs=2))
    engine.add_request("b", PROMPT, SamplingParams(max_tokens=3))
    events, completions = [], {}
    while engine.has_unfinished_requests():
        output = engine.step()
        events += output.tokens
        completions |= {done.request_id: done for done in output.completions}
    assert drain(engine) == {}
    listed = [event.top_logprobs for event in events if event.request_id == "a"]
    assert tuple(listed) == completions["a"].top_logprobs
    assert all(event.top_logprobs is None for event in events if event.request_id == "b")
    assert completions["b"].top_logprobs is None


def test_an_aborted_request_has_them_for_what_it_emitted(tiny_folder):
    engine = make_engine(tiny_folder)
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=20, logprobs=2))
    for _ in range(20):
        engine.step()
    (done,) = engine.abort("a")
    assert len(done.top_logprobs) == len(done.token_ids) > 0


def test_lists_of_another_length_than_the_batch_are_an_interface_error(tiny_folder, monkeypatch):
    engine = make_engine(tiny_folder)
    engine.add_request("a", [1], SamplingParams(max_tokens=1))
    monkeypatch.setattr(HeadOutput, "alternatives", lambda *_: [])
    with pytest.raises(InterfaceError, match="expected 1 entries in a head result"):
        drain(engine)
