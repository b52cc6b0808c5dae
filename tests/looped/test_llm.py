"""`LLM`: prompts in, completions out, in the order of the prompts."""

import gc
import logging
import re
import shutil
from dataclasses import replace

import pytest
from engines import SMALL_SIZES, check_idle, make_llm

from looped import LLM, SamplingParams, UsageError
from looped.engine.observer import LaunchRecorder
from looped.engine.options import EngineConfig
from looped.llm import GenerationRequest
from looped.sched import ExitOptions, FinishReason, LaunchKind, all_rungs, ladders_for


@pytest.fixture(scope="module")
def llm(request):
    folder = request.getfixturevalue("tiny_folder")
    return LLM(str(folder), **SMALL_SIZES)


def test_completions_come_in_the_order_of_the_prompts(llm):
    prompts = ["hello", [5, 6, 7], "the quick brown fox", [9]]
    params = [SamplingParams(max_tokens=count, ignore_eos=True) for count in (9, 2, 5, 1)]
    completions = llm.generate(prompts, params, show_progress=False)
    assert [len(done.token_ids) for done in completions] == [9, 2, 5, 1]
    assert completions[0].prompt_token_ids == tuple(llm.tokenizer.encode("hello"))
    assert completions[1].prompt_token_ids == (5, 6, 7)
    for done in completions:
        assert done.text == llm.tokenizer.decode(done.token_ids)
        assert len(done.exit_depths) == len(done.logprobs) == len(done.token_ids)
        assert done.finish_reason is FinishReason.LENGTH


def test_a_batch_equals_its_prompts_one_by_one(llm):
    prompts = [[index, 2, 3] for index in range(7)]
    params = SamplingParams(max_tokens=6, exit=ExitOptions(threshold=0.5, min_loops=1))
    together = llm.generate(prompts, params, show_progress=False)
    for prompt, done in zip(prompts, together, strict=True):
        (alone,) = llm.generate([prompt], params, show_progress=False)
        assert (alone.token_ids, alone.exit_depths) == (done.token_ids, done.exit_depths)


def test_other_options_share_weights_and_compiled_steps(llm):
    params = SamplingParams(max_tokens=4, exit=ExitOptions(threshold=0.5, min_loops=1))
    prompts = [[index, 2, 3] for index in range(5)]
    expected = llm.generate(prompts, params, show_progress=False)
    before = llm.engine.stats().num_compilations
    other = llm.with_options(policy="separate")
    got = other.generate(prompts, params, show_progress=False)
    assert [(done.token_ids, done.exit_depths) for done in got] == [
        (done.token_ids, done.exit_depths) for done in expected
    ]
    assert other.engine.stats().num_mixed_launches == 0
    assert other.engine.stats().num_compilations == before
    assert llm.engine.config.policy is None
    with pytest.raises(UsageError, match="shared executables were compiled for"):
        llm.with_options(max_num_seqs=4)


def test_stop_token_ids_end_a_request_and_are_its_last_token(llm, square_golden):
    run = square_golden.runs[0]
    stop = run["token_ids"][4]
    params = SamplingParams(
        max_tokens=20,
        stop_token_ids=frozenset({stop}),
        ignore_eos=True,
        exit=ExitOptions(max_loops=1),
    )
    (done,) = llm.generate([square_golden.prompts[run["prompt"]]], params, show_progress=False)
    assert list(done.token_ids) == run["token_ids"][: run["token_ids"].index(stop) + 1]
    assert done.finish_reason is FinishReason.STOP


def test_the_models_end_of_sequence_stops_unless_ignored(tiny_folder, square_golden):
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    stopping = LLM(str(tiny_folder), eos_token_ids=[run["token_ids"][2]], **SMALL_SIZES)
    exit_options = ExitOptions(max_loops=1)
    (stopped,) = stopping.generate(
        [prompt], SamplingParams(max_tokens=9, exit=exit_options), show_progress=False
    )
    (ignoring,) = stopping.generate(
        [prompt],
        SamplingParams(max_tokens=9, ignore_eos=True, exit=exit_options),
        show_progress=False,
    )
    assert list(stopped.token_ids) == run["token_ids"][:3]
    assert list(ignoring.token_ids) == run["token_ids"][:9]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "options", "num_tokens"),
    [
        (3, {}, 64),
        (3, {"max_tokens": 93}, 93),
        (32, {}, 64),
        (33, {}, 63),
        (90, {}, 6),
        (90, {"max_tokens": 6}, 6),
        (95, {}, 1),
        (95, {"max_tokens": 1, "min_tokens": 1}, 1),
        (3, {"max_tokens": 94}, "3 + 94 > 96; shorten the prompt, lower max_tokens to 93, or"),
        (90, {"max_tokens": 64}, "90 + 64 > 96; shorten the prompt, lower max_tokens to 6, or"),
        (96, {}, "96 + 1 > 96; shorten the prompt, or raise --max-model-len"),
        (90, {"min_tokens": 7}, "min_tokens must be in 0 to max_tokens, 6; got 7"),
        (3, {"min_tokens": 65}, "min_tokens must be in 0 to max_tokens, 64; got 65"),
    ],
)
def test_max_tokens_left_out_is_what_has_room_and_given_is_kept_to(
    llm, num_prompt_tokens, options, num_tokens
):
    params = SamplingParams(ignore_eos=True, **options)
    limited = llm.engine.limited
    if isinstance(num_tokens, str):
        with pytest.raises(UsageError, match=re.escape(num_tokens)):
            llm.engine.add_request("a", [5] * num_prompt_tokens, params)
        return
    assert limited(params, num_prompt_tokens).max_tokens == num_tokens
    llm.engine.add_request("a", [5] * num_prompt_tokens, params)
    assert [done.request_id for done in llm.engine.abort("a")] == ["a"]
    if num_tokens < 10:
        (done,) = llm.generate([[5] * num_prompt_tokens], params, show_progress=False)
        assert len(done.token_ids) == num_tokens


def test_a_small_pool_leaves_less_room(tiny_folder):
    small = make_llm(tiny_folder, num_blocks=4 * 3)  # of 16 positions, in 4 planes
    for num_prompt_tokens, num_tokens in ((3, 46), (48, 1)):
        assert small.engine.limited(SamplingParams(), num_prompt_tokens).max_tokens == num_tokens
        small.engine.add_request("a", [5] * num_prompt_tokens, SamplingParams())
        small.engine.abort("a")
    with pytest.raises(UsageError, match=r"at most 12 KV blocks.*lower max_tokens to 46, or"):
        small.engine.add_request("a", [5] * 3, SamplingParams(max_tokens=47))


@pytest.mark.parametrize("exit_options", [{}, {"mode": "random_lookahead", "threshold": 0.5}])
def test_equal_samples_are_computed_once(llm, exit_options):
    rules = ExitOptions(**exit_options)
    greedy = SamplingParams(max_tokens=5, logprobs=2, prompt_logprobs=0, exit=rules)
    before = llm.engine.stats()
    (alone,) = llm.generate([[5, 6, 7]], greedy, show_progress=False)
    between = llm.engine.stats()
    samples = llm.generate([[5, 6, 7]], replace(greedy, n=4, seed=alone.seed), show_progress=False)
    after = llm.engine.stats()
    assert [done.sample_index for done in samples] == [0, 1, 2, 3]
    assert samples[0] == alone
    for index, done in enumerate(samples[1:], start=1):
        assert done == replace(alone, sample_index=index, prompt_scores=())
    for name in ("num_prompt_rows", "num_decode_rows", "num_head_rows", "num_output_tokens"):
        once = getattr(between, name) - getattr(before, name)
        assert getattr(after, name) - getattr(between, name) == once, name


def test_leaving_equal_samples_early_leaves_nothing_behind(llm):
    params = SamplingParams(max_tokens=20, n=3, ignore_eos=True)
    running = llm.run([GenerationRequest(prompt_token_ids=(1, 2), params=params)])
    while not next(running).tokens:
        pass
    running.close()
    check_idle(llm.engine)


def test_one_refused_prompt_means_that_none_has_run(llm):
    launches = len(llm.engine.runner.records)
    with pytest.raises(UsageError, match="request '1'"):
        llm.generate([[1, 2], [600]], show_progress=False)
    assert len(llm.engine.runner.records) == launches
    assert not llm.engine.has_unfinished_requests()


def test_one_refused_prompt_means_that_no_observer_has_heard_of_any(tiny_folder):
    events = []
    llm = LLM(str(tiny_folder), observer=LaunchRecorder(events.append), **SMALL_SIZES)
    with pytest.raises(UsageError, match="request '1'"):
        llm.generate([[1, 2], [600]], show_progress=False)
    assert events == []


def test_leaving_a_run_early_aborts_the_rest(llm):
    request = GenerationRequest(prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=30))
    for output in llm.run([request] * 3):
        if output.tokens:
            break
    del output
    gc.collect()
    assert not llm.engine.has_unfinished_requests()
    assert llm.engine.stats().num_used_blocks == 0


def test_repeated_prompts_come_from_the_prefix_cache(llm):
    prompt = list(range(100, 150))
    first, second = (
        llm.generate([prompt], SamplingParams(max_tokens=4), show_progress=False)[0]
        for _ in range(2)
    )
    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == 48
    assert first.token_ids == second.token_ids


def test_wrong_numbers_of_options_and_unknown_options_are_refused(llm, tiny_folder):
    with pytest.raises(UsageError, match="options for 2 prompts, got 1"):
        llm.generate([[1], [2]], [SamplingParams()])
    with pytest.raises(UsageError, match="max_sequences"):
        LLM(str(tiny_folder), max_sequences=3)
    with pytest.raises(UsageError, match="not both"):
        LLM(str(tiny_folder), config=EngineConfig(), max_num_seqs=3)


def test_no_prompts_give_no_completions_and_one_text_is_not_a_list(llm):
    assert llm.generate([]) == []
    with pytest.raises(UsageError, match="write \\[text\\]"):
        llm.generate("hello")


def test_without_a_tokenizer_the_configs_still_say_where_a_sequence_ends(tiny_folder, tmp_path):
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(tiny_folder / name, tmp_path / name)
    bare = LLM(str(tmp_path), **SMALL_SIZES)
    assert bare.tokenizer is None
    (done,) = bare.generate([[1, 2]], SamplingParams(max_tokens=1), show_progress=False)
    assert done.text is None
    assert bare.engine._eos_token_ids == {0, 2}
    with pytest.raises(UsageError, match="give token ids"):
        bare.generate(["hello"])


def test_a_chat_ends_at_the_end_of_a_turn_unless_told_otherwise(llm, tiny_folder):
    def ends(model, **options):
        request = GenerationRequest(prompt_token_ids=(1,), params=SamplingParams(**options))
        return model.with_chat_stop(request).params.stop_token_ids

    assert ends(llm) == {2}
    assert ends(llm, stop_token_ids=[7]) == {2, 7}
    assert ends(llm, ignore_eos=True) == frozenset()
    assert ends(LLM(str(tiny_folder), eos_token_ids=[9], **SMALL_SIZES)) == frozenset()


def test_only_what_the_prompts_can_reach_is_compiled_and_nothing_after_that(tiny_folder):
    for policy in ("mixed", "separate", "atomic"):
        model = LLM(str(tiny_folder), policy=policy, **SMALL_SIZES)
        engine = model.engine
        prompts = [[5] * length for length in (3, 20, 31)]
        engine.warm_up([len(prompt) for prompt in prompts])
        compiled = engine.stats().num_compilations
        # Every rung, and the three writers that any engine has.
        everything = len(all_rungs(ladders_for(engine.scheduler_config))) + 3
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        model.generate(prompts, params, show_progress=False)
        assert engine.stats().num_compilations == compiled <= everything
        small = LLM(str(tiny_folder), policy=policy, **SMALL_SIZES)
        small.generate([[1, 2]], params, show_progress=False)
        # Two rows at most, two prompt tokens: one rung of `recurrent` (and 4 for both), one of
        # `head`; `prefill` only where the policy would use it for so few rows.
        steps = set(small.engine.runner.executables.compiled_steps)
        assert {step.kind for step in steps} == (
            {LaunchKind.RECURRENT, LaunchKind.HEAD}
            | ({LaunchKind.PREFILL} if policy == "atomic" else set())
        )
        assert len(steps) < everything


def test_the_memory_plan_is_told_once_until_it_changes(llm, caplog):
    other = llm.with_options(policy="mixed")
    with caplog.at_level(logging.INFO, logger="looped"):
        for _ in range(2):
            other.generate([[1, 2]], SamplingParams(max_tokens=2), show_progress=False)
    assert len([text for text in caplog.messages if text.startswith("memory plan")]) == 1


@pytest.mark.long
def test_num_loops_sets_planes_capacity_and_exits_in_one_place(tiny_folder):
    shallow = LLM(str(tiny_folder), num_loops=2, **SMALL_SIZES)
    (done,) = shallow.generate([[1, 2, 3]], SamplingParams(max_tokens=5), show_progress=False)
    assert set(done.exit_depths) == {2}
    assert shallow.engine.scheduler_config.num_planes == 2
    assert shallow.engine.runner.executables.shape.config.num_loops == 2
    with pytest.raises(UsageError, match=r"max_loops must be in 1\.\.2"):
        shallow.generate([[1]], SamplingParams(exit=ExitOptions(max_loops=3)))
