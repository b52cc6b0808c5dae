"""What a launch costs the host: one upload, the readbacks of the rule, no compilation."""

import ast
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from engines import (
    SMALL,
    complete,
    drain,
    drain_samples,
    make_engine,
    run_params,
    second_fixture_is_slow,
)

import looped
from looped.programs.executables import Executables
from looped.programs.recurrent import recurrent_layout
from looped.sampling_params import SamplingParams
from looped.sched import (
    ExitMode,
    ExitOptions,
    ItemKind,
    LaunchKind,
    SchedulerConfig,
    all_rungs,
    ladders_for,
)
from looped.sched.choice import offer

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    """Names of compilations while the test runs."""
    seen = []

    def listen(event, duration, **_):
        if event == COMPILED:
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


def random_request(rng, index):
    mode = rng.choice(list(ExitMode))
    if mode is ExitMode.TRACE:
        exit_options = ExitOptions(
            trace=(4, *(rng.randint(1, 4) for _ in range(rng.randint(0, 9))))
        )
    else:
        exit_options = ExitOptions(mode=mode, threshold=rng.choice([0.2, 0.5, 0.8, 1.0]))
    return (
        f"{index}",
        [rng.randrange(512) for _ in range(rng.randint(1, 60))],
        SamplingParams(
            max_tokens=rng.randint(1, 12),
            temperature=rng.choice([0.0, 0.7, 1.5]),
            top_k=rng.choice([None, 1, 5, 50]),
            top_p=rng.choice([1.0, 0.9, 0.3]),
            seed=rng.randrange(2**40),
            min_p=rng.choice([0.0, 0.1]),
            logit_bias=rng.choice([{}, {rng.randrange(512): 5.0, rng.randrange(512): -100}]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
            presence_penalty=rng.choice([0.0, 0.0, 0.5]),
            frequency_penalty=rng.choice([0.0, 0.0, -0.5]),
            min_tokens=rng.choice([0, 1]),
            logprobs=rng.choice([None, 0, 3, 20]),
            stop_token_ids=rng.choice([(), (3, 4, 5)]),
            exit=exit_options,
        ),
    )


def with_samples_and_scores(rng, params, policy):
    """The same options with several samples or a scored prompt, where they allow it."""
    changes = {"prompt_logprobs": rng.choice([None, None, 0, 20])}
    if changes["prompt_logprobs"] is not None and policy != "atomic":
        changes["prompt_logprobs_every_loop"] = rng.random() < 0.5
    if params.temperature > 0:
        changes["n"] = rng.choice([1, 1, 2, 5])
    elif changes["prompt_logprobs"] is not None and rng.random() < 0.3:
        changes |= {"max_tokens": 0, "min_tokens": 0, "logprobs": None}
    return replace(params, **changes)


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_two_hundred_random_requests_compile_nothing_after_warm_up(
    tiny_folder, policy, compilations
):
    """Whatever they ask for, and whenever some of them are aborted."""
    engine = make_engine(tiny_folder, policy=policy)
    engine.warm_up()
    rng = random.Random(7)
    # The first launch of a process also compiles JAX's own small helpers; they are not ours.
    engine.add_request("first", [1, 2, 3], SamplingParams(max_tokens=2))
    drain(engine)
    compilations.clear()
    before = engine.stats().num_compilations
    with jax.transfer_guard_host_to_device("disallow"):
        completions, num_samples = [], 0
        for index in range(200):
            name, prompt, params = random_request(rng, index)
            params = with_samples_and_scores(rng, params, policy)
            engine.add_request(name, prompt, params)
            num_samples += params.n
            if rng.random() < 0.7:
                completions += engine.step().completions
            if rng.random() < 0.1:
                completions += engine.abort(f"{rng.randrange(index + 1)}")
        completions += drain_samples(engine).values()
    assert compilations == []
    assert engine.stats().num_compilations == before
    assert not [done for done in completions if done.error]
    assert len(completions) == num_samples
    assert {done.finish_reason for done in completions} == {"stop", "length", "abort"}
    kinds = {kind for kind, count in engine.stats().num_launches.items() if count}
    assert LaunchKind.SCORE in kinds


@pytest.mark.parametrize("options", [{}, {"deterministic": True, "policy": "atomic"}])
def test_each_call_of_an_executable_is_one_host_to_device_transfer(
    tiny_folder, monkeypatch, options
):
    engine = make_engine(tiny_folder, **options)
    sent = []
    device_put = jax.device_put

    def counting(value, *arguments, **options):
        sent.append(np.asarray(value).nbytes)
        return device_put(value, *arguments, **options)

    monkeypatch.setattr(jax, "device_put", counting)
    with jax.transfer_guard_host_to_device("disallow"):
        complete(engine, [[1, 2, 3], list(range(40))], [SamplingParams(max_tokens=6)] * 2)
    calls = sum(record.num_calls for record in engine.runner.records)
    assert len(sent) == calls == engine.stats().num_uploads > 20
    assert (calls > len(engine.runner.records)) == bool(options)


@pytest.mark.parametrize("options", [{}, {"deterministic": True, "policy": "atomic"}])
def test_a_buffer_is_never_written_again_once_it_was_sent(tiny_folder, monkeypatch, options):
    """On a CPU the device may read the host's own memory while the launch runs."""
    sent = []
    device_put = jax.device_put

    def remember(value, *arguments, **options):
        sent.append((value, value.copy()))
        return device_put(value, *arguments, **options)

    engine = make_engine(tiny_folder, **options)
    monkeypatch.setattr(jax, "device_put", remember)
    complete(engine, [[1, 2, 3], list(range(40))], [SamplingParams(max_tokens=6)] * 2)
    assert len(sent) > 20
    for index, (buffer, content) in enumerate(sent):
        np.testing.assert_array_equal(buffer, content)
        assert not any(np.shares_memory(buffer, other) for other, _ in sent[:index])


def deciding_loops(rule, pending_from):
    """Loops at which the host must look, from the rule as DESIGN words it."""
    if rule.threshold >= 1.0:
        return set()
    first, last = {
        "ouro": (rule.min_loops, rule.max_loops - 1),
        "ouro_delayed": (rule.min_loops, rule.max_loops - 2),
        "random_lookahead": (max(1, rule.min_loops - 1), rule.max_loops - 2),
        "lookahead": (max(1, rule.min_loops - 1), rule.max_loops - 2),
    }[rule.mode]
    return {loop for loop in range(first, last + 1) if loop < pending_from}


def gate_loops(rule, pending_from):
    """Loops in which the row needs a gate."""
    if rule.mode in ("random_lookahead", "lookahead"):
        return deciding_loops(rule, pending_from)
    if rule.threshold >= 1.0:
        return set()
    return {loop for loop in range(1, rule.max_loops) if loop < pending_from}


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
@pytest.mark.parametrize("mode", [None, *ExitMode])
def test_readbacks_and_gates_are_exactly_those_of_the_rule(tiny_folder, policy, mode):
    check_readbacks_and_gates(tiny_folder, policy, mode)


def check_readbacks_and_gates(tiny_folder, policy, mode):
    """Recomputed from the launch records and the exit depths, launch by launch."""
    engine = make_engine(tiny_folder, policy=policy)
    rng = random.Random(11)
    requests, rules = [], {}
    while len(requests) < 24:
        name, prompt, params = random_request(rng, len(requests))
        wanted = params.exit.mode or ExitMode.TRACE
        if mode in (None, wanted):
            requests.append((name, prompt, params))
    for request in requests:
        engine.add_request(*request)
        rules[request[0]] = engine.scheduler.unfinished_request(request[0]).exit_rule
    completions = drain(engine)
    expected = 0
    for record in engine.runner.records:
        is_read, needs_gate = record.kind is LaunchKind.CODA, False
        if record.kind is LaunchKind.RECURRENT:
            for item in record.items:
                if item.kind is ItemKind.PROMPT or rules[item.request_id].trace:
                    continue
                done, rule = completions[item.request_id], rules[item.request_id]
                exit_loop = done.exit_depths[item.first_position - len(done.prompt_token_ids) + 1]
                # Delayed modes settle one loop before they leave, unless the bound cut them off.
                pending_from = exit_loop if rule.mode != "ouro" else 99
                loop = item.depth + 1
                is_read |= loop in deciding_loops(rule, pending_from)
                needs_gate |= loop in gate_loops(rule, pending_from)
        assert record.num_readbacks == is_read, record
        assert record.runs_gate == needs_gate, record
        expected += is_read
    assert engine.runner.reader.num_reads == expected
    assert engine.stats().num_readbacks == expected


def test_mutation_a_gate_for_prompt_rows_is_noticed(tiny_folder, monkeypatch):
    """The rule of the gate, recomputed from decode rows alone, does not allow it."""
    original = offer.prompt_item
    monkeypatch.setattr(
        offer, "prompt_item", lambda *item: replace(original(*item), runs_gate=True)
    )
    with pytest.raises(AssertionError, match="LaunchRecord"):
        check_readbacks_and_gates(tiny_folder, "mixed", None)


def test_fixed_depth_launches_are_never_read(tiny_folder):
    engine = make_engine(tiny_folder)
    complete(engine, [[1, 2, 3]] * 4, [SamplingParams(max_tokens=8)] * 4)
    reads = Counter((record.kind, record.num_readbacks) for record in engine.runner.records)
    assert reads[LaunchKind.RECURRENT, 1] == 0
    assert reads[LaunchKind.RECURRENT, 0] > 0
    assert reads[LaunchKind.CODA, 0] == 0


def test_the_defaults_need_at_most_24_executables():
    sizes = {"num_planes": 4, "vocab_size": 512, "num_blocks": 64, "max_model_len": 64}
    for policy in ("mixed", "separate", "atomic"):
        rungs = all_rungs(ladders_for(SchedulerConfig(**sizes, policy=policy)))
        assert len(rungs) == len(set(rungs)) <= 24


@second_fixture_is_slow
def test_token_loops_are_conserved_and_equal_under_every_policy(golden):
    prompts = [golden.prompts[run["prompt"]] for run in golden.runs[:40]]
    params = [run_params(run) for run in golden.runs[:40]]
    work = {}
    for policy in ("mixed", "separate", "atomic"):
        engine = make_engine(golden.folder, policy=policy, prefix_caching=False)
        completions = complete(engine, prompts, params)
        work[policy] = sum(record.token_loops for record in engine.runner.records)
        decode = sum(sum(done.exit_depths[1:]) for done in completions)
        assert work[policy] == 4 * sum(map(len, prompts)) + decode
    assert work["mixed"] == work["separate"] == work["atomic"]


@second_fixture_is_slow
@pytest.mark.long
def test_with_prefix_caching_rows_run_and_rows_hit_add_up_under_every_policy(golden):
    """Hits depend on timing, so each request's work is compared with its own hits."""
    prompts = [golden.prompts[run["prompt"]] for run in golden.runs[:40]]
    params = [run_params(run) for run in golden.runs[:40]]
    for policy in ("mixed", "separate", "atomic"):
        engine = make_engine(golden.folder, policy=policy, block_size=4, num_blocks=768)
        completions = complete(engine, prompts, params)
        rows = Counter()
        for record in engine.runner.records:
            for item in record.items:
                rows[item.request_id] += item.num_rows * record.num_passes
        for done in completions:
            computed = len(done.prompt_token_ids) - done.num_cached_tokens
            assert rows[done.request_id] == 4 * computed + sum(done.exit_depths[1:])
        assert sum(done.num_cached_tokens for done in completions) > 0


def test_fixed_depth_mixed_launches_have_no_host_wait_at_all(tiny_folder):
    engine = make_engine(tiny_folder)
    complete(engine, [[index] * 50 for index in range(16)], [SamplingParams(max_tokens=9)] * 16)
    mixed = [record for record in engine.runner.records if record.is_mixed]
    assert len(mixed) == engine.stats().num_mixed_launches > 10
    assert not any(record.num_readbacks or record.runs_gate for record in mixed)
    stats = engine.stats()
    assert engine.runner.reader.num_reads == stats.num_launches[LaunchKind.CODA]
    launched = [item for record in engine.runner.records for item in record.items]
    prompt_rows = [item.num_rows for item in launched if item.kind is ItemKind.PROMPT]
    assert stats.num_prompt_rows == sum(prompt_rows) > 0
    assert stats.num_decode_rows == 16 * 8 * 4
    assert stats.num_coda_rows == 16 * 9


def test_the_state_is_donated_and_updated_in_place(tiny_folder):
    engine = make_engine(tiny_folder)
    before = engine.runner.state
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=2))
    engine.step()
    assert before.key_pool.is_deleted()
    shape, executables = engine.runner.executables.shape, engine.runner.executables
    for rung in all_rungs(ladders_for(engine.scheduler_config)):
        analysis = executables.get(rung).memory_analysis()
        assert analysis.alias_size_in_bytes >= shape.kv_bytes
        assert analysis.temp_size_in_bytes < shape.kv_bytes


@pytest.mark.long
def test_temporary_memory_does_not_grow_with_the_pool(tiny_folder):
    temps = []
    for num_blocks in (SMALL.num_blocks, 4096):
        engine = make_engine(tiny_folder, num_blocks=num_blocks)
        executables = Executables(
            engine.runner.executables.shape, engine._parameters, backend="xla"
        )
        for rung in ((LaunchKind.RECURRENT, 32), (LaunchKind.PREFILL, 32), (LaunchKind.CODA, 8)):
            executables.get(rung)
        temps.append(executables.workspace_bytes)
    assert temps[0] == pytest.approx(temps[1], rel=0.05)


def test_one_int32_buffer_holds_every_array_of_a_launch(tiny_folder):
    shape = make_engine(tiny_folder).runner.executables.shape
    layout = recurrent_layout(shape, 32)
    buffer = np.zeros(layout.size, np.int32)
    views = layout.host_views(buffer)
    views.token_ids[:] = np.arange(32)
    views.decode_tables[:] = 7
    views.prompts.first_rows[:] = 9
    unpacked = layout.unpack(buffer)
    assert unpacked.token_ids.tolist() == list(range(32))
    assert (unpacked.decode_tables == 7).all()
    assert unpacked.decode_tables.shape == (8, shape.blocks_per_seq)
    assert (unpacked.prompts.first_rows == 9).all()
    assert np.count_nonzero(buffer) == 31 + 8 * shape.blocks_per_seq + 8


def test_only_the_reader_reads_from_the_device():
    folder = Path(looped.__file__).parent
    # Host arrays alone: a random head, before there is an engine.
    allowed = {"device/reader.py", "programs/lookahead.py"}
    paths = {
        path for room in ("device", "engine", "programs") for path in (folder / room).rglob("*.py")
    }
    assert {folder / name for name in allowed} < paths
    for path in paths - {folder / name for name in allowed}:
        tree = ast.parse(path.read_text())
        called = {
            node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            # What it makes lies on the device already.
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "jnp")
        }
        assert not called & {"asarray", "item", "device_get", "block_until_ready"}, path


def test_small_has_the_rungs_that_these_tests_name():
    assert SMALL.max_num_batched_tokens == 32


def test_stats_are_a_copy(tiny_folder):
    engine = make_engine(tiny_folder)
    before = engine.stats()
    complete(engine, [[1, 2, 3]], [SamplingParams(max_tokens=2)])
    assert not any(before.num_launches.values())
    assert engine.stats().num_launches[LaunchKind.CODA] == 2
