"""Random requests through `LLM.run`, with any options together: nobody notices the others."""

import random
from dataclasses import replace

import numpy as np
import pytest
from engines import check_idle, make_llm

from looped.llm import GenerationRequest
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, FinishReason

NUM_REQUESTS = 60
VOCAB_SIZE = 512
# The penalty keeps the tiny model from saying one word over and over.
GREEDY = SamplingParams(max_tokens=12, repetition_penalty=1.5, ignore_eos=True)


def random_prompts(rng):
    """Many begin alike, so that they share blocks and siblings are not the only ones with hits."""
    bases = [[rng.randrange(3, VOCAB_SIZE) for _ in range(40)] for _ in range(8)]
    return [tuple(rng.choice(bases)[: rng.randint(1, 40)]) for _ in range(NUM_REQUESTS)]


def random_exit(rng):
    least, most = sorted((rng.randint(1, 4), rng.randint(1, 4)))
    return ExitOptions(
        mode=rng.choice([ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.RANDOM_LOOKAHEAD]),
        threshold=rng.choice([0.2, 0.5, 1.0]),
        min_loops=rng.choice([None, least]),
        max_loops=rng.choice([None, most]),
    )


def random_stop(rng, text):
    """Pieces of a greedy text, which greedy requests for the same prompt find."""
    starts = [rng.randrange(len(text)) for _ in range(rng.randint(1, 3))]
    return tuple(text[start : start + rng.randint(1, 6)] for start in starts)


def random_params(rng, text):
    temperature = rng.choice([0.0, 0.0, 0.7, 1.3])
    stop = random_stop(rng, text) if text and rng.random() < 0.6 else ()
    prompt_logprobs = rng.choice([None, None, 0, 3])
    params = replace(
        GREEDY,
        max_tokens=rng.randint(1, 12),
        n=rng.choice([1, 2, 3]) if temperature else 1,
        temperature=temperature,
        top_k=rng.choice([None, 20]),
        min_p=rng.choice([0.0, 0.05]),
        seed=rng.randrange(99),
        stop=stop,
        include_stop_str_in_output=bool(stop) and rng.random() < 0.4,
        ignore_eos=rng.random() < 0.5,
        priority=rng.randrange(3),
        logprobs=rng.choice([None, 0, 4]),
        prompt_logprobs=prompt_logprobs,
        prompt_logprobs_every_loop=prompt_logprobs is not None and rng.random() < 0.5,
    )
    if rng.random() < 0.5:
        return params
    return replace(
        params,
        min_tokens=rng.randint(0, params.max_tokens),
        logit_bias={rng.randrange(VOCAB_SIZE): 8.0, rng.randrange(VOCAB_SIZE): -100.0},
        repetition_penalty=rng.choice([1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, -0.5]),
        exit=random_exit(rng),
    )


def run(llm, requests):
    """Completions by request and sample; checks that the stream tells the same, and that nothing
    is compiled once the first step has come back."""
    events, completions, compiled = {}, {}, None
    for output in llm.run(requests):
        compiled = compiled or llm.engine.stats().num_compilations
        for event in output.tokens:
            name = int(event.request_id), event.sample_index
            assert name not in completions
            events.setdefault(name, []).append(event)
        for done in output.completions:
            name = int(done.request_id), done.sample_index
            assert name not in completions
            completions[name] = done
    assert llm.engine.stats().num_compilations == compiled
    check_idle(llm.engine)
    assert set(completions) == {
        (index, sample) for index, one in enumerate(requests) for sample in range(one.params.n)
    }
    for name, done in completions.items():
        streamed = events.get(name, [])
        assert tuple(event.token_id for event in streamed) == done.token_ids
        assert done.text.startswith("".join(event.text for event in streamed))
        check_text(llm.tokenizer, done, requests[name[0]].params)
    return completions


def check_text(tokenizer, done, params):
    """The text is that of the tokens, up to the first stop string."""
    whole = tokenizer.decode(done.token_ids)
    if not isinstance(done.stop_reason, str):
        assert done.text == whole
    elif params.include_stop_str_in_output:
        assert done.text.endswith(done.stop_reason)
        assert whole.startswith(done.text)
    else:
        assert whole.startswith(done.text + done.stop_reason)
    if params.min_tokens == 0:
        # An unfinished character is no text yet.
        before = tokenizer.decode(done.token_ids[:-1]).rstrip("\N{REPLACEMENT CHARACTER}")
        assert not any(stop in before for stop in params.stop)


@pytest.fixture(scope="module")
def crowd(request):
    """The requests, and what each of them gets alone."""
    rng = random.Random(11)
    llm = make_llm(request.getfixturevalue("tiny_folder"))
    prompts = random_prompts(rng)
    plain = run(llm, [GenerationRequest(prompt_token_ids=ids, params=GREEDY) for ids in prompts])
    requests = [
        GenerationRequest(prompt_token_ids=ids, params=random_params(rng, plain[index, 0].text))
        for index, ids in enumerate(prompts)
    ]
    alone = {}
    for index, one in enumerate(requests):
        done = run(llm, [one])
        alone |= {(index, sample_index): done[0, sample_index] for _, sample_index in done}
    return requests, alone


def check_scores(done, expected, is_every_loop):
    scores = expected.prompt_scores if is_every_loop else expected.prompt_scores[-1:]
    assert [one.loop for one in done.prompt_scores] == [one.loop for one in scores]
    for one, other in zip(done.prompt_scores, scores, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_requests_get_the_same_alone_and_in_a_crowd(tiny_folder, crowd, policy):
    requests, alone = crowd
    can_score_every_loop = policy != "atomic"
    if not can_score_every_loop:
        requests = [
            replace(one, params=replace(one.params, prompt_logprobs_every_loop=False))
            for one in requests
        ]
    llm = make_llm(tiny_folder, policy=policy, scheduling_policy="priority")
    completions = run(llm, requests)
    for name, done in completions.items():
        expected = alone[name]
        for field in ("token_ids", "text", "tokens", "finish_reason", "stop_reason", "exit_depths"):
            assert getattr(done, field) == getattr(expected, field), (name, field)
        np.testing.assert_allclose(done.logprobs, expected.logprobs, atol=1e-4)
        check_scores(done, expected, can_score_every_loop)


def test_the_crowd_is_worth_the_name(crowd):
    requests, alone = crowd
    reasons = [(done.finish_reason, type(done.stop_reason)) for done in alone.values()]
    for reason in ((FinishReason.LENGTH, type(None)), (FinishReason.STOP, str)):
        assert reasons.count(reason) >= 10, reasons
    assert len(alone) > NUM_REQUESTS
    assert len({depth for done in alone.values() for depth in done.exit_depths}) == 4
    cut_inside = [done for done in alone.values() if done.text and type(done.stop_reason) is str]
    assert len(cut_inside) >= 5
    assert sum(one.params.prompt_logprobs_every_loop for one in requests) >= 5
