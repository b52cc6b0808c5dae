"""Log-probabilities of prompt tokens, after the last loop or each, against the float64 oracle."""

import numpy as np
import pytest
from engines import check_idle, complete, drain, make_engine, second_fixture_is_slow
from numpy_sampler import numpy_logprobs

from looped.errors import UsageError
from looped.sampling_params import SamplingParams
from looped.sched import FinishReason, LaunchKind

SCORE_ALONE = SamplingParams(max_tokens=0, prompt_logprobs=5)
EVERY_LOOP = SamplingParams(max_tokens=0, prompt_logprobs=5, prompt_logprobs_every_loop=True)


def check_scores(golden, index, done, *, num_top=5, loops=(4,)):
    """Every score of a completion of golden prompt `index`, from the oracle's float64 logits."""
    prompt = golden.prompts[index]
    assert [scores.loop for scores in done.prompt_scores] == (list(loops) if prompt[1:] else [])
    for scores in done.prompt_scores:
        expected = numpy_logprobs(golden.arrays[f"logits_{index}"][scores.loop - 1, :-1])
        rows = np.arange(len(prompt) - 1)
        np.testing.assert_allclose(scores.logprobs, expected[rows, prompt[1:]], atol=1e-4)
        # A near tie may fall either way in float32; what is named is as likely as the best.
        best = expected[rows, list(scores.best_token_ids)]
        np.testing.assert_allclose(best, expected.max(axis=-1), atol=1e-4)
        if num_top == 0:
            assert scores.top_logprobs == ((),) * len(rows)
            continue
        for row, listed in zip(expected, scores.top_logprobs, strict=True):
            token_ids, values = zip(*listed, strict=True)
            np.testing.assert_allclose(values, np.sort(row)[::-1][:num_top], atol=1e-4)
            np.testing.assert_allclose(values, row[list(token_ids)], atol=1e-4)
            assert len(set(token_ids)) == num_top


@second_fixture_is_slow
@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_prompt_scores_are_the_oracles(golden, policy):
    """Chunks of 16 rows, so that prompts of 17, 33 and 61 tokens end anywhere in a chunk."""
    engine = make_engine(golden.folder, policy=policy)
    done = complete(engine, golden.prompts, [SCORE_ALONE] * len(golden.prompts))
    for index, completion in enumerate(done):
        check_scores(golden, index, completion)
        assert completion.token_ids == ()
        assert completion.finish_reason is FinishReason.LENGTH
    assert engine.stats().num_heads == 0


@second_fixture_is_slow
@pytest.mark.parametrize("policy", ["mixed", "separate"])
def test_every_loop_can_be_scored(golden, policy):
    engine = make_engine(golden.folder, policy=policy)
    done = complete(engine, golden.prompts, [EVERY_LOOP] * len(golden.prompts))
    for index, completion in enumerate(done):
        check_scores(golden, index, completion, loops=(1, 2, 3, 4))
    assert engine.stats().num_launches[LaunchKind.PREFILL] == 0


def test_scores_are_the_same_whole_and_in_chunks(square_golden):
    """One chunk for each prompt; then chunks of 16 and of 5 rows."""
    whole = {"prefill_chunk_size": 64, "max_num_batched_tokens": 80, "deterministic": True}
    for options in (whole, {}):
        engine = make_engine(square_golden.folder, **options)
        params = [EVERY_LOOP] * len(square_golden.prompts)
        for index, completion in enumerate(complete(engine, square_golden.prompts, params)):
            check_scores(square_golden, index, completion, loops=(1, 2, 3, 4))


def test_scored_requests_go_on_and_mix_with_others(square_golden):
    """Tokens are those of the same requests unscored; each score launch is read once."""
    prompts = square_golden.prompts * 2
    kinds = [
        {},
        {"prompt_logprobs": 0},
        {"prompt_logprobs": 3, "prompt_logprobs_every_loop": True},
        {"prompt_logprobs": 20},
        {"temperature": 1.0, "seed": 3, "presence_penalty": 0.5, "logprobs": 2},
    ]
    options = [kinds[index % len(kinds)] for index in range(len(prompts))]
    engine = make_engine(square_golden.folder)
    scored = complete(
        engine, prompts, [SamplingParams(max_tokens=6, **values) for values in options]
    )
    assert {record.num_readbacks for record in engine.runner.records if not record.num_passes} == {
        1
    }
    plain_options = [
        {name: value for name, value in values.items() if not name.startswith("prompt_")}
        for values in options
    ]
    plain = complete(
        make_engine(square_golden.folder),
        prompts,
        [SamplingParams(max_tokens=6, **values) for values in plain_options],
    )
    assert [done.token_ids for done in scored] == [done.token_ids for done in plain]
    for index, (done, values) in enumerate(zip(scored, options, strict=True)):
        if "prompt_logprobs" not in values:
            assert done.prompt_scores == ()
            continue
        loops = (1, 2, 3, 4) if "prompt_logprobs_every_loop" in values else (4,)
        number = values["prompt_logprobs"]
        check_scores(square_golden, index % 6, done, num_top=number, loops=loops)


def test_nothing_is_compiled_after_warm_up(square_golden):
    engine = make_engine(square_golden.folder)
    engine.warm_up()
    num_compilations = engine.stats().num_compilations
    complete(engine, square_golden.prompts, [EVERY_LOOP] * 6)
    params = SamplingParams(max_tokens=2, prompt_logprobs=1, n=3, temperature=1.0)
    engine.add_request("a", square_golden.prompts[-1], params)
    while engine.has_unfinished_requests():
        engine.step()
    assert engine.stats().num_compilations == num_compilations


def test_scores_do_not_depend_on_chunk_policy_or_neighbours_in_deterministic_mode(square_golden):
    def scores(prompts, **options):
        engine = make_engine(square_golden.folder, deterministic=True, **options)
        done = complete(engine, prompts, [SCORE_ALONE] * len(prompts))
        return [np.asarray(c.prompt_scores[0].logprobs, np.float32).tobytes() for c in done]

    prompts = square_golden.prompts[1:]
    alone = [scores([prompt])[0] for prompt in prompts]
    assert scores(prompts) == alone
    assert scores(prompts, policy="atomic") == alone
    assert scores(prompts, prefill_chunk_size=7) == alone


def test_an_abort_between_scores_leaves_nothing_behind(square_golden):
    for step in range(12):
        engine = make_engine(square_golden.folder)
        engine.add_request("a", square_golden.prompts[-1], EVERY_LOOP)
        for _ in range(step):
            engine.step()
        (done,) = engine.abort("a")
        assert done.finish_reason is FinishReason.ABORT
        assert drain(engine) == {}
        check_idle(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, or 0 with prompt_logprobs"),
        ({"max_tokens": -1, "prompt_logprobs": 0}, "max_tokens must be at least 1, or 0"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be in 0 to 20, or left out; got 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be in 0 to 20"),
        ({"prompt_logprobs": 1.0}, "prompt_logprobs must be a whole number, got 1.0"),
        ({"prompt_logprobs_every_loop": 1}, "every_loop must be true or false, got 1"),
        ({"prompt_logprobs_every_loop": True}, "every_loop needs prompt_logprobs"),
        ({"max_tokens": 0, "prompt_logprobs": 1, "min_tokens": 1}, "min_tokens must be in 0 to"),
    ],
)
def test_options_that_contradict_are_refused_by_name(options, message):
    with pytest.raises(UsageError, match=message):
        SamplingParams(**options)


def test_policy_atomic_refuses_scores_of_every_loop(square_golden):
    engine = make_engine(square_golden.folder, policy="atomic")
    with pytest.raises(UsageError, match="prompt_logprobs_every_loop needs launches of one"):
        engine.add_request("a", [1, 2], EVERY_LOOP)
    assert not engine.has_unfinished_requests()
    engine.add_request("a", [1, 2], SCORE_ALONE)
    assert list(drain(engine)) == ["a"]
