"""Which rungs a closed set of requests can reach: enough of them, and not simply all."""

import random

import pytest
from engines import SMALL_SIZES, drain_samples, make_engine

from looped.engine.generation_request import GenerationRequest
from looped.llm import LLM
from looped.programs.executables import Step
from looped.programs.sampling.forms import forms_of
from looped.sampling_params import SamplingParams
from looped.sched import LaunchKind, all_rungs, reachable_rungs


def random_set(rng, policy):
    """A few prompts, some with samples and some scored."""
    requests = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        prompt = [rng.randrange(512) for _ in range(rng.choice([1, 2, 5, 17, 40]))]
        num_samples = rng.choice([1, 1, 2, 5, 11])
        is_scored = rng.random() < 0.3
        params = SamplingParams(
            max_tokens=rng.randint(1, 4),
            n=num_samples,
            temperature=1.0,
            seed=3,
            prompt_logprobs=1 if is_scored else None,
            prompt_logprobs_every_loop=is_scored and policy != "atomic" and rng.random() < 0.5,
        )
        requests.append((prompt, params))
    return requests


def closed_set(requests):
    """Arguments of `warm_up` for exactly these requests."""
    lengths = [len(prompt) for prompt, params in requests for _ in range(params.n)]
    return lengths, any(params.prompt_logprobs is not None for _, params in requests)


def serve(engine, requests):
    for index, (prompt, params) in enumerate(requests):
        engine.add_request(str(index), prompt, params)
    return drain_samples(engine)


def test_engines_of_one_shape_share_steps_here_and_each_counts_its_own(tiny_folder):
    """As tests/support/shared_steps.py has it: only the time to compile is saved."""
    first, second = (make_engine(tiny_folder).runner.executables for _ in range(2))
    (step,) = first.steps([(LaunchKind.HEAD, 8)])
    assert first.get(step) is second.get(step)
    assert first.writer("admit") is second.writer("admit")
    assert (first.num_compilations, second.num_compilations) == (2, 2)
    assert first.compiled_steps == second.compiled_steps == (step,)


def test_a_step_is_called_after_program_rows_and_form_in_profiles():
    form = next(form for form in forms_of(LaunchKind.HEAD, is_conditional=False) if form.copies)
    assert Step(LaunchKind.HEAD, 4, form).name == "head_4_greedy_copies"
    assert Step(LaunchKind.RECURRENT, 16).name == "recurrent_16"


@pytest.mark.parametrize("options", [{}, {"prefix_caching": False}, {"deterministic": True}])
@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic", "wavefront"])
def test_a_closed_set_with_samples_and_scores_launches_nothing_but_what_it_can_reach(
    tiny_folder, policy, options
):
    if policy == "wavefront":
        options = options | {"prefill_chunk_size": 7}  # the shape of its other tests
    engine, rng = make_engine(tiny_folder, policy=policy, **options), random.Random(4)
    num_fewer = 0
    for _ in range(12):
        requests = random_set(rng, policy)
        lengths, has_scores = closed_set(requests)
        reachable = reachable_rungs(
            engine._ladders, engine.scheduler_config, lengths, has_scores=has_scores
        )
        engine.runner.records.clear()
        serve(engine, requests)
        launched = {(record.kind, record.bucket) for record in engine.runner.records}
        heads = [record.head for record in engine.runner.records if record.head is not None]
        launched |= {(LaunchKind.HEAD, head.bucket) for head in heads}
        if options.get("deterministic"):  # its prefill launches run pass by pass
            launched = {
                (LaunchKind.RECURRENT if kind is LaunchKind.PREFILL else kind, rows)
                for kind, rows in launched
            }
        assert launched <= set(reachable), (requests, launched)
        num_fewer += len(reachable) < len(all_rungs(engine._ladders))
    assert num_fewer > 0


def test_what_is_compiled_for_several_samples_and_scores_is_enough(tiny_folder):
    drawn = SamplingParams(max_tokens=3, temperature=1.0, seed=1, n=3)
    for scored in ({}, {"prompt_logprobs": 0}):
        llm = LLM(str(tiny_folder), **SMALL_SIZES)
        last = SamplingParams(max_tokens=2, **scored)
        requests = [
            GenerationRequest(prompt_token_ids=(5, 6), params=drawn),
            GenerationRequest(prompt_token_ids=(7,), params=last),
        ]
        counts = [llm.engine.stats().num_compilations for _ in llm.run(requests)]
        assert set(counts) == {counts[-1]}
        assert counts[-1] < len(all_rungs(llm.engine._ladders)) + 1
