"""What requests get is the same however late the host reads, whoever comes and goes meanwhile."""

import random
from dataclasses import replace

import numpy as np
import pytest
from engines import check_idle, make_engine, run_params
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looped.llm import LLM
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, FinishReason

POLICIES = ("mixed", "separate", "atomic", "deepest-first", "no-refill")
RUN_AHEAD = (0, 1, 2, 4)
DRAWN = {
    "drawn": {"temperature": 1.2, "top_p": 0.9, "seed": 5},
    "edited": {"presence_penalty": 1.0, "logit_bias": {7: 2.0}, "min_tokens": 3},
    "ranked": {"logprobs": 3, "temperature": 0.7, "top_k": 8, "seed": 9},
    "samples": {"temperature": 1.0, "seed": 2, "n": 3},
    "scored": {"prompt_logprobs": 2},
}


def cases_of(golden):
    """Golden runs of every mode, and requests with every option: prompt and params by name."""
    by_mode = {}
    for run in golden.runs:
        by_mode.setdefault((run["mode"], run["threshold"] < 1), []).append(run)
    cases = {}
    for key, runs in by_mode.items():
        for index, run in enumerate(runs[:2]):
            cases[f"{key} {index}"] = (golden.prompts[run["prompt"]], run_params(run))
    for mode, (name, options) in zip(
        [ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD, ExitMode.OURO, ExitMode.OURO, ExitMode.OURO],
        DRAWN.items(),
        strict=True,
    ):
        exit_options = ExitOptions(mode=mode, threshold=0.5, min_loops=1)
        params = SamplingParams(max_tokens=8, exit=exit_options, ignore_eos=True, **options)
        cases[name] = (golden.prompts[1], params)
    stops = golden.runs[0]["token_ids"][2:3]
    many = [*range(300, 320), *stops]  # more than the device knows
    for name, stop_ids in (("stopped", stops), ("stopped by one of many", many)):
        first = replace(run_params(golden.runs[0]), stop_token_ids=stop_ids)
        cases[name] = (golden.prompts[golden.runs[0]["prompt"]], first)
    return cases


def facts_of(done):
    """What must be the same, and what may differ in the last bits."""
    exact = (done.token_ids, done.exit_depths, done.finish_reason, done.stop_reason)
    numbers = [*done.logprobs]
    for top in done.top_logprobs or ():
        numbers += [value for _, value in top]
    for scores in done.prompt_scores:
        numbers += scores.logprobs
    return exact, np.asarray(numbers)


@pytest.fixture(scope="module")
def alone(square_golden):
    """Each case by itself, read at once after every launch."""
    found = {}
    for name, (prompt, params) in cases_of(square_golden).items():
        engine = make_engine(square_golden.folder, run_ahead=0)
        engine.add_request("a", prompt, params)
        samples = {}
        while engine.has_unfinished_requests():
            for done in engine.step().completions:
                samples[done.sample_index] = facts_of(done)
        found[name] = samples
    return found


def play(golden, alone, *, seed, run_ahead, policy, most=99, **options):
    """A random crowd, of at most so many, with adds and aborts at any moment."""
    rng, cases = random.Random(seed), cases_of(golden)
    if policy == "atomic":
        cases.pop("scored")  # its prompt is scored in launches of its own, which the others share
    ahead = 0 if policy == "deepest-first" else run_ahead
    engine = make_engine(golden.folder, policy=policy, run_ahead=ahead, **options)
    waiting = [(f"{name}/{copy}", name) for name in cases for copy in range(2)]
    rng.shuffle(waiting)
    del waiting[most:]
    under_way, aborted, completions = [], set(), []
    while waiting or engine.has_unfinished_requests():
        if waiting and rng.random() < 0.4:
            request_id, name = waiting.pop()
            engine.add_request(request_id, *cases[name])
            under_way.append(request_id)
        if under_way and rng.random() < 0.04:
            request_id = rng.choice(under_way)
            ended = engine.abort(request_id)
            aborted |= {request_id} if ended else set()
            completions += ended
        completions += engine.step().completions
    check_idle(engine)
    for done in completions:
        name = done.request_id.split("/")[0]
        exact, numbers = facts_of(done)
        expected, expected_numbers = alone[name][done.sample_index]
        if done.finish_reason is FinishReason.ABORT:
            count = len(done.token_ids)
            assert exact[:2] == (expected[0][:count], expected[1][:count]), name
            continue
        assert exact == expected, (name, run_ahead, policy)
        np.testing.assert_allclose(numbers, expected_numbers, rtol=1e-5, atol=1e-5)
    num_samples = sum(cases[name.split("/")[0]][1].n for name in under_way)
    assert len(completions) == num_samples
    return engine


@pytest.mark.parametrize("run_ahead", RUN_AHEAD)
@pytest.mark.parametrize(
    "policy",
    [*POLICIES, pytest.param("wavefront", marks=pytest.mark.long)],  # a shape of its own
)
def test_a_crowd_gets_what_each_gets_alone(square_golden, alone, policy, run_ahead):
    engine = play(square_golden, alone, seed=run_ahead, run_ahead=run_ahead, policy=policy)
    assert engine.stats().num_heads > 20


@pytest.mark.long
@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_five_hundred_random_crowds_get_what_each_gets_alone(square_golden, alone, chunk):
    """A quarter of them for every size of chunk; 64 is every prompt whole."""
    sizes = {"prefill_chunk_size": chunk}
    if chunk == 64:
        sizes["max_num_batched_tokens"] = 96

    @settings(
        max_examples=125,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seed=st.integers(0, 2**20),
        run_ahead=st.sampled_from(RUN_AHEAD),
        policy=st.sampled_from(POLICIES),
        prefix_caching=st.booleans(),
    )
    def run(seed, run_ahead, policy, prefix_caching):
        play(
            square_golden,
            alone,
            seed=seed,
            run_ahead=run_ahead,
            policy=policy,
            prefix_caching=prefix_caching,
            most=12,
            **sizes,
        )

    run()


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_deterministic_bits_do_not_depend_on_how_late_the_host_reads(square_golden, policy):
    cases = cases_of(square_golden)
    names = [name for name in cases if name != "scored"]

    def bits(run_ahead):
        engine = make_engine(
            square_golden.folder, deterministic=True, policy=policy, run_ahead=run_ahead
        )
        for name in names:
            engine.add_request(name, *cases[name])
            engine.step()
        found = {}
        while engine.has_unfinished_requests():
            for done in engine.step().completions:
                exact, numbers = facts_of(done)
                found[done.request_id, done.sample_index] = exact, numbers.tobytes()
        return found

    first = bits(0)
    for run_ahead in (1, 4):
        assert bits(run_ahead) == first


@pytest.mark.parametrize("run_ahead", RUN_AHEAD)
def test_stop_strings_cut_where_they_do_without_launches_ahead(tiny_folder, run_ahead):
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "prefill_chunk_size": 16}
    sizes |= {"max_model_len": 96, "num_blocks": 4 * 8 * 6}
    llm = LLM(str(tiny_folder), run_ahead=run_ahead, **sizes)
    plain = SamplingParams(max_tokens=16, ignore_eos=True, repetition_penalty=1.5)
    (whole,) = llm.generate([[5, 6, 7]], plain, show_progress=False)
    stop = "".join(whole.tokens[4:6])
    stopped = replace(plain, stop=(stop,))
    for done in llm.generate([[5, 6, 7]] * 3, [stopped, plain, stopped], show_progress=False):
        if done.finish_reason is FinishReason.STOP:
            assert done.token_ids == whole.token_ids[:6]
            assert (done.stop_reason, done.text) == (stop, "".join(whole.tokens[:4]))
        else:
            assert done.token_ids == whole.token_ids
    check_idle(llm.engine)


def test_run_ahead_is_one_by_default_and_none_where_the_order_goes_by_depth(tiny_folder):
    for options, expected in (({}, 1), ({"policy": "deepest-first"}, 0), ({"run_ahead": 3}, 3)):
        engine = make_engine(tiny_folder, **options)
        engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=20))
        engine.step()
        assert engine.scheduler.num_in_flight <= expected
        for _ in range(6):
            engine.step()
        assert engine.scheduler.num_in_flight == expected
