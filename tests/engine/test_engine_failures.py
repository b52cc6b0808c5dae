"""What can go wrong in a running engine, and what must survive it."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from engines import (
    NUM_SLOTS,
    SMALL,
    InjectedError,
    check_idle,
    complete,
    drain,
    fail_once,
    loaded_model,
    make_engine,
    run_params,
)

from looped.device.state import DeviceState
from looped.engine.generation_request import GenerationRequest
from looped.engine.llm_engine import LLMEngine
from looped.engine.options import EngineConfig
from looped.engine.runner import Runner
from looped.errors import LoopedError, UsageError
from looped.loading import load_folder
from looped.programs.executables import Step
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, FinishReason, InterfaceError, LaunchKind


@pytest.mark.parametrize("run_ahead", [0, 1, 4])
def test_a_failure_before_the_launch_ends_only_its_own_requests(
    square_golden, monkeypatch, run_ahead
):
    """What was out before it is applied first."""
    runs = square_golden.runs[:4]
    # Under `separate` the late prompt runs in launches of its own.
    engine = make_engine(square_golden.folder, policy="separate", run_ahead=run_ahead)
    for index, run in enumerate(runs[:2]):
        engine.add_request(str(index), square_golden.prompts[run["prompt"]], run_params(run))
    for _ in range(6):
        engine.step()
    state = fail_once(
        monkeypatch,
        "pack",
        lambda batch: {item.request.request_id for item in batch.items} == {"late"},
    )
    engine.add_request("late", [7, 7, 7], SamplingParams(max_tokens=3))
    completions = drain(engine)
    assert state["has_failed"]
    assert completions["late"].finish_reason is FinishReason.ERROR
    assert "injected into pack" in completions["late"].error
    for index, run in enumerate(runs[:2]):
        assert list(completions[str(index)].token_ids) == run["token_ids"]
    assert engine.stats().num_failed_launches == 1


@pytest.mark.parametrize("run_ahead", [0, 1, 4])
@pytest.mark.parametrize("method", ["launch", "collect"])
def test_a_failure_on_the_device_ends_active_requests_and_waiting_ones_go_on(
    square_golden, monkeypatch, method, run_ahead
):
    engine = make_engine(square_golden.folder, run_ahead=run_ahead)
    engine.warm_up()
    compiled = engine.stats().num_compilations
    state = fail_once(monkeypatch, method, lambda _: len(engine.runner.records) == 9)
    runs = square_golden.runs[: NUM_SLOTS + 3]
    for index, run in enumerate(runs):
        engine.add_request(str(index), square_golden.prompts[run["prompt"]], run_params(run))
    completions = drain(engine)
    assert state["has_failed"]
    failed = [index for index in range(len(runs)) if completions[str(index)].error]
    assert failed == list(range(NUM_SLOTS))
    assert "device state was lost" in completions["0"].error
    for index in range(NUM_SLOTS, len(runs)):
        assert list(completions[str(index)].token_ids) == runs[index]["token_ids"]
    assert engine.stats().num_compilations == compiled
    assert engine.stats().num_failed_launches == 1


def test_a_real_executable_that_fails_leaves_its_inputs_deleted_and_the_engine_usable(
    square_golden,
):
    engine = make_engine(square_golden.folder)
    run = square_golden.runs[0]
    engine.add_request("a", square_golden.prompts[run["prompt"]], run_params(run))
    engine.step()
    engine.runner.state.key_pool.delete()
    assert "device state was lost" in drain(engine)["a"].error
    engine.add_request("b", square_golden.prompts[run["prompt"]], run_params(run))
    assert list(drain(engine)["b"].token_ids) == run["token_ids"]


def poisoned_model(folder):
    """The tiny model with a NaN in the embedding of token 13."""
    loaded = load_folder(folder)
    embedding = loaded.model.embedding.weight
    embedding[...] = embedding[...].at[13].set(jnp.nan)
    return loaded


def test_non_finite_logits_end_the_request_and_withdraw_what_it_published(tiny_folder):
    shared = make_engine(tiny_folder)
    engine = LLMEngine(
        poisoned_model(tiny_folder), shared.config, executables=shared.runner.executables
    )
    prompt = [13] + [5] * 40
    engine.add_request("bad", prompt, SamplingParams(max_tokens=4))
    engine.add_request("good", [1, 2, 3] + [5] * 40, SamplingParams(max_tokens=4))
    completions = drain(engine)
    assert completions["bad"].finish_reason is FinishReason.ERROR
    assert "finite" in completions["bad"].error
    assert completions["bad"].token_ids == ()
    assert completions["good"].error is None
    engine.add_request("again", prompt, SamplingParams(max_tokens=4))
    assert drain(engine)["again"].num_cached_tokens == 0
    engine.add_request("good again", [1, 2, 3] + [5] * 40, SamplingParams(max_tokens=4))
    assert drain(engine)["good again"].num_cached_tokens > 0


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_one_infinite_logit_is_as_bad_as_a_nan(tiny_folder, value):
    shared = make_engine(tiny_folder)
    loaded = load_folder(tiny_folder)
    head = loaded.model.lm_head.weight
    head[...] = head[...].at[7].set(value)
    engine = LLMEngine(loaded, shared.config, executables=shared.runner.executables)
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=2))
    assert "finite" in drain(engine)["a"].error


def test_a_mixed_launch_that_cannot_be_packed_ends_all_that_were_in_it(square_golden, monkeypatch):
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    engine = make_engine(square_golden.folder)
    fail_once(monkeypatch, "pack", lambda batch: 0 < batch.num_decode < len(batch.items))
    engine.add_request("decoder", prompt, run_params(run))
    for _ in range(8):
        engine.step()
    engine.add_request("prompt", list(range(40)), SamplingParams(max_tokens=2))
    completions = drain(engine)
    assert {name for name, done in completions.items() if done.error} == {"decoder", "prompt"}
    engine.add_request("after", prompt, run_params(run))
    assert list(drain(engine)["after"].token_ids) == run["token_ids"]


def test_a_split_prefill_that_fails_between_two_passes_loses_the_state(tiny_folder):
    engine = make_engine(tiny_folder, deterministic=True, policy="atomic")
    engine.warm_up()
    step = Step(LaunchKind.RECURRENT, 32)
    compiled, calls = engine.runner.executables.get(step), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise InjectedError("third pass")
        return compiled(*arguments)

    engine.runner.executables._compiled[step] = failing
    try:
        engine.add_request("a", list(range(10)), SamplingParams(max_tokens=3))
        assert "third pass" in drain(engine)["a"].error
        engine.add_request("b", list(range(10)), SamplingParams(max_tokens=3))
        assert drain(engine)["b"].error is None
    finally:
        engine.runner.executables._compiled[step] = compiled


def test_prompt_state_of_another_request_is_refused_not_read(tiny_folder):
    engine = make_engine(tiny_folder)
    for name in ("a", "b"):
        engine.add_request(name, [1, 2, 3], SamplingParams(max_tokens=2))
    batch = engine.scheduler.schedule()
    first, second = (item.prompt_item for item in batch.items)
    first.state, second.state = second.state, first.state
    with pytest.raises(InterfaceError, match="prompt state of the item's own request"):
        engine.runner.pack(batch)
    engine.scheduler.fail_batch(batch, "swapped")
    check_idle(engine)


@pytest.mark.parametrize(("part", "is_traced"), [("schedule", False), ("apply", True)])
def test_a_broken_contract_is_traced_where_no_policy_is_at_fault(
    tiny_folder, monkeypatch, caplog, part, is_traced
):
    engine = make_engine(tiny_folder)
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=2))

    def broken(*_):
        raise InterfaceError("expected a batch, got a wreck")

    monkeypatch.setattr(engine.scheduler, part, broken)
    with pytest.raises(InterfaceError, match="got a wreck"):
        drain(engine)
    (record,) = (one for one in caplog.records if one.message.startswith("a step failed"))
    assert bool(record.exc_info) == is_traced


@pytest.mark.parametrize("run_ahead", [0, 1, 4])
@pytest.mark.parametrize("method", ["pack", "launch", "collect"])
def test_an_interrupt_passes_through_and_leaves_the_engine_usable(
    square_golden, monkeypatch, method, run_ahead
):
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    engine = make_engine(square_golden.folder, run_ahead=run_ahead)
    engine.add_request("cut off", prompt, run_params(run))
    for _ in range(3):
        engine.step()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Runner, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            drain(engine)
    assert engine.scheduler.num_in_flight == 0
    check_idle(engine)
    engine.add_request("after", prompt, run_params(run))
    assert list(drain(engine)["after"].token_ids) == run["token_ids"]


def test_without_a_fresh_state_everybody_is_told_and_nobody_else_let_in(tiny_folder, monkeypatch):
    engine = make_engine(tiny_folder)
    active = [f"active {slot}" for slot in range(NUM_SLOTS)]
    for name in (*active, "waiting"):
        engine.add_request(name, [1, 2], SamplingParams(max_tokens=3))
    engine.step()
    fail_once(monkeypatch, "collect", lambda _: True)

    def no_memory(runner):
        raise MemoryError("no room for a second pool")

    monkeypatch.setattr(Runner, "reset", no_memory)
    completions = {done.request_id: done for done in engine.step().completions}
    for name in active:
        assert "device state was lost" in completions[name].error
    assert "no fresh device state" in completions["waiting"].error
    assert not engine.has_unfinished_requests()
    assert engine.is_broken
    with pytest.raises(LoopedError, match="make another one"):
        engine.add_request("late", [1], SamplingParams())


def test_the_old_state_is_deleted_before_a_fresh_one_is_made(tiny_folder, monkeypatch):
    engine = make_engine(tiny_folder)
    before, zeros = engine.runner.state, DeviceState.zeros

    def checked(shape):
        assert before.key_pool.is_deleted()
        assert before.value_pool.is_deleted()
        return zeros(shape)

    monkeypatch.setattr(DeviceState, "zeros", checked)
    engine.runner.reset()
    assert not engine.runner.state.key_pool.is_deleted()


def test_blocks_that_nobody_owns_are_never_written(tiny_folder):
    """A pattern in every block of every layer; the last ones, beyond what is needed, keep it."""
    engine = make_engine(tiny_folder, prefix_caching=False)
    noise = np.random.default_rng(0).normal(size=engine.runner.state.key_pool.shape)
    pattern = noise.astype(np.float32)
    engine.runner._state = replace(
        engine.runner.state, key_pool=jnp.asarray(pattern), value_pool=jnp.asarray(pattern)
    )
    owned: set[int] = set()
    for index in range(12):
        exit_options = ExitOptions(threshold=0.3, min_loops=1)
        params = SamplingParams(max_tokens=9, exit=exit_options)
        engine.add_request(str(index), [index + 1] * (3 + 4 * index), params)
    while engine.has_unfinished_requests():
        engine.step()
        for request in engine.scheduler.active_requests:
            owned |= {block for table in request.block_tables for block in table}
    shape = engine.runner.executables.shape
    untouched = sorted(set(range(shape.num_blocks)) - owned)
    assert shape.num_blocks - 1 in untouched
    for layer in range(shape.config.num_layers):
        blocks = np.array(untouched) + layer * shape.num_blocks
        for pool in (engine.runner.state.key_pool, engine.runner.state.value_pool):
            np.testing.assert_array_equal(np.asarray(pool)[blocks], pattern[blocks])


@pytest.mark.parametrize("run_ahead", [0, 1, 4])
def test_an_abort_at_any_step_frees_everything_and_disturbs_nobody(square_golden, run_ahead):
    run = square_golden.runs[0]
    prompt = square_golden.prompts[run["prompt"]]
    for step in range(0, 40, 3):
        engine = make_engine(square_golden.folder, run_ahead=run_ahead)
        engine.add_request("keep", prompt, run_params(run))
        engine.add_request("drop", list(range(50)), SamplingParams(max_tokens=30))
        early = {}
        for _ in range(step):
            early |= {done.request_id: done for done in engine.step().completions}
        (dropped,) = engine.abort("drop")
        assert dropped.finish_reason is FinishReason.ABORT
        # The id is free at once.
        engine.add_request("drop", prompt, run_params(run))
        completions = early | drain(engine)
        assert list(completions["keep"].token_ids) == run["token_ids"]
        assert list(completions["drop"].token_ids) == run["token_ids"]


def test_blocks_freed_by_one_of_three_requests_may_be_poisoned(square_golden):
    """Finish the middle of three requests at different depths, then fill its blocks with NaN."""
    engine = make_engine(square_golden.folder, prefix_caching=False)
    runs = [run for run in square_golden.runs if run["mode"] == "trace"][:3]
    for index, run in enumerate(runs):
        engine.add_request(str(index), square_golden.prompts[run["prompt"]], run_params(run))
    for _ in range(12):
        engine.step()
    middle = engine.scheduler.unfinished_request("1")
    blocks = sorted({block for table in middle.block_tables for block in table})
    assert blocks
    assert len(engine.abort("1")) == 1
    shape = engine.runner.executables.shape
    everywhere = np.concatenate(
        [np.array(blocks) + layer * shape.num_blocks for layer in range(shape.config.num_layers)]
    )
    engine.runner._state = replace(
        engine.runner.state,
        key_pool=engine.runner.state.key_pool.at[everywhere].set(jnp.nan),
        value_pool=engine.runner.state.value_pool.at[everywhere].set(jnp.nan),
    )
    completions = drain(engine)
    for index in (0, 2):
        assert list(completions[str(index)].token_ids) == runs[index]["token_ids"]


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one prompt token"),
        ([1, 512], {}, "token ids in 0..511, got 512"),
        ([-1], {}, "token ids in 0..511, got -1"),
        ([1] * 90, {"max_tokens": 10}, "90 \\+ 10 > 96"),
        ([1], {"exit": ExitOptions(max_loops=5)}, "max_loops must be in 1..4"),
        ([1], {"exit": ExitOptions(min_loops=0)}, "min_loops must be in 1..4"),
        ([1], {"exit": ExitOptions(min_loops=3, max_loops=2)}, "min_loops must be in 1..2"),
        ([1], {"exit": ExitOptions(threshold=1.5)}, "threshold must be in \\[0, 1\\]"),
        ([1], {"exit": ExitOptions(mode=ExitMode.TRACE)}, "needs a trace"),
        ([1], {"exit": ExitOptions(trace=(3, 1))}, "must begin with 4"),
        ([1], {"exit": ExitOptions(trace=(4, 5))}, "entry 1 must be in 1..4"),
        ([1], {"exit": ExitOptions(trace=(4,), threshold=0.5)}, "takes no threshold"),
        ([1], {"exit": ExitOptions(trace=(4,), mode=ExitMode.OURO)}, "exit mode trace"),
    ],
)
def test_a_request_that_can_never_run_is_refused_and_the_queue_is_unharmed(
    square_golden, prompt, options, message
):
    engine = make_engine(square_golden.folder)
    run = square_golden.runs[0]
    engine.add_request("before", square_golden.prompts[run["prompt"]], run_params(run))
    with pytest.raises(UsageError, match=message):
        engine.add_request("refused", prompt, SamplingParams(**options))
    assert list(drain(engine)["before"].token_ids) == run["token_ids"]


def test_an_id_in_use_and_a_request_larger_than_the_pool_are_refused(tiny_folder):
    engine = make_engine(tiny_folder, num_blocks=4 * 2)
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    with pytest.raises(UsageError, match="an id of its own"):
        engine.add_request("a", [1], SamplingParams(max_tokens=2))
    with pytest.raises(UsageError, match="at most 8 KV blocks"):
        engine.add_request("b", [1] * 40, SamplingParams(max_tokens=2))
    params = SamplingParams(max_tokens=2)
    good, large = (
        GenerationRequest(prompt_token_ids=prompt, params=params) for prompt in ((1,), (1,) * 40)
    )
    with pytest.raises(UsageError, match="at most 8 KV blocks"):
        engine.add_requests({"c": good, "d": large})
    engine.add_requests({"c": good, "e": good})  # c is free: neither of the two was added
    assert set(drain(engine)) == {"a", "c", "e"}
    check_idle(engine)


@pytest.mark.slow
def test_two_prompts_of_sixty_percent_of_the_pool_finish_one_after_the_other(tiny_folder):
    engine = make_engine(tiny_folder, num_blocks=4 * 5, prefix_caching=False)
    completions = complete(engine, [[1] * 40, [2] * 40], [SamplingParams(max_tokens=8)] * 2)
    assert [len(done.token_ids) for done in completions] == [8, 8]
    check_idle(engine)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_batched_tokens": 4}, "max_num_batched_tokens must be >= max_num_seqs"),
        ({"prefill_chunk_size": 33}, "33 is not in 1..32"),
        ({"run_ahead": 5}, r"run_ahead must be in 0\.\.4, got 5"),
        ({"run_ahead": -1}, r"run_ahead must be in 0\.\.4, got -1"),
        ({"run_ahead": 1, "policy": "deepest-first"}, "run_ahead must be 0, or left out, with pol"),
        ({"policy": "fastest"}, "mixed, separate, atomic"),
        ({"prefill_chunk_size": 26}, r"26 \+ 8 - 1 > 32; try --max-num-batched-tokens 33"),
        ({"max_prefill_batches_before_decode": 1}, "ignores it; got 1"),
        ({"policy": "atomic", "prompt_shortcut": True}, "policy atomic, which ignores it"),
        (
            {"policy": "wavefront", "prefix_caching": True},
            "off, or left out, with policy wavefront",
        ),
        ({"policy": "atomic", "mixed_prefill_decode": False}, "off means policy separate"),
        ({"policy": "separate", "mixed_prefill_decode": True}, "on means policy mixed"),
        ({"max_model_len": 5000}, "at most the model's 4096"),
        ({"kv_cache_bytes": 10, "num_blocks": None}, "holds 0 KV blocks"),
        ({"attention_backend": "magic"}, "must be one of auto, xla, pallas, .*; got 'magic'"),
        ({"attention_backend": "triton"}, "triton runs on an NVIDIA GPU, and JAX has found cpu"),
        (
            {"attention_backend": "triton_fused"},
            "triton_fused runs on an NVIDIA GPU, and JAX has found cpu only; leave it out",
        ),
        ({"layers": "scanned"}, "layers scanned was asked for, but the model was loaded unrolled"),
        ({"min_loops": 3, "max_loops": 2}, r"min_loops must be in 1\.\.2"),
        ({"min_loops": 5}, r"min_loops must be in 1\.\.4"),
        ({"max_loops": 5}, r"max_loops must be in 1\.\.4"),
        ({"exit_threshold": 1.5}, "threshold must be in"),
    ],
)
def test_engine_options_that_contradict_are_refused_with_numbers(tiny_folder, options, message):
    with pytest.raises(LoopedError, match=message):
        LLMEngine(loaded_model(tiny_folder), replace(SMALL, **options))


def test_lengths_that_do_not_fill_a_block_are_right_together_and_alone(tiny_folder):
    prompts, params = [[1] * 5, [2] * 7], [SamplingParams(max_tokens=20)] * 2
    together = complete(make_engine(tiny_folder), prompts, params)
    for prompt, options, crowd in zip(prompts, params, together, strict=True):
        (alone,) = complete(make_engine(tiny_folder), [prompt], [options])
        assert alone.token_ids == crowd.token_ids


def test_every_launch_kind_that_a_policy_uses_is_counted(tiny_folder):
    engine = make_engine(tiny_folder, policy="atomic")
    complete(engine, [[1] * 20], [SamplingParams(max_tokens=4)])
    launches = engine.stats().num_launches
    assert launches[LaunchKind.PREFILL] == 2
    assert launches[LaunchKind.RECURRENT] == 3 * 4
    assert engine.stats().num_heads == 4


def test_an_attention_backend_that_cannot_serve_the_model_is_refused_at_the_start(tiny_folder):
    loaded = loaded_model(tiny_folder)
    wide = replace(loaded, config=replace(loaded.config, head_dim=512))
    with pytest.raises(UsageError, match=r"attention_backend pallas: .*head_dim up to 256"):
        LLMEngine(wide, replace(SMALL, attention_backend="pallas"))


def test_an_interpreted_attention_backend_is_logged_once_by_name(tiny_folder, caplog):
    LLMEngine(loaded_model(tiny_folder), replace(SMALL, attention_backend="pallas"))
    (record,) = [record for record in caplog.records if "interpreter" in record.message]
    assert "pallas runs in the Pallas interpreter" in record.message


def test_a_form_of_the_layers_that_is_none_is_refused_by_name():
    with pytest.raises(UsageError, match="layers must be one of unrolled, scanned; got 'rolled'"):
        EngineConfig(layers="rolled")
