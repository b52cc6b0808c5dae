"""What a launch costs the host: one upload, the readbacks of the rule, no compilation."""

import ast
import random
from collections import Counter
from dataclasses import fields, replace
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
from looped.programs.prompt_arrays import PromptArrays
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
    assert calls == engine.stats().num_uploads > 20
    assert engine.stats().num_writes == 2, "a row of the request table each"
    assert len(sent) == calls + 2
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


def deciding_loops(rule):
    """Loops after which a signal decides, from the rule as the exit modes' page words it."""
    if rule.threshold >= 1.0:
        return set()
    first, last = {
        "ouro": (rule.min_loops, rule.max_loops - 1),
        "ouro_delayed": (rule.min_loops, rule.max_loops - 2),
        "random_lookahead": (max(1, rule.min_loops - 1), rule.max_loops - 2),
        "lookahead": (max(1, rule.min_loops - 1), rule.max_loops - 2),
    }[rule.mode]
    return set(range(first, last + 1))


def head_loops(rule, exit_loop, output_index):
    """Loops after which the row may leave, as far as a host can know that has read every record.

    Delayed modes settle one loop before they leave. Where no head follows that loop, the next one
    has one; where one follows, it tells.
    """
    if rule.trace or rule.threshold >= 1.0:
        traced = rule.trace[output_index : output_index + 1]
        return {traced[0] if traced else rule.max_loops}
    deciding = deciding_loops(rule)
    if rule.mode == "ouro":
        return deciding | {rule.max_loops}
    loops, is_open = set(), False
    for loop in range(1, exit_loop + 1):
        if is_open or loop == exit_loop:
            loops.add(loop)
        is_open = loop in deciding - loops
    return loops


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
@pytest.mark.parametrize("mode", [None, *ExitMode])
def test_heads_and_readbacks_are_exactly_those_of_the_rule(tiny_folder, policy, mode):
    check_heads_and_readbacks(tiny_folder, policy, mode)


def random_requests(mode):
    rng = random.Random(11)
    requests = []
    while len(requests) < 24:
        name, prompt, params = random_request(rng, len(requests))
        wanted = params.exit.mode or ExitMode.TRACE
        if mode in (None, wanted):
            requests.append((name, prompt, params))
    return requests


def check_heads_and_readbacks(tiny_folder, policy, mode):
    """Recomputed from the launch records and the exit depths, launch by launch."""
    engine = make_engine(tiny_folder, policy=policy, run_ahead=0)
    rules = {}
    for request in random_requests(mode):
        engine.add_request(*request)
        rules[request[0]] = engine.scheduler.unfinished_request(request[0]).exit_rule
    completions = drain(engine)
    expected_reads = 0
    for record in engine.runner.records:
        num_head_rows = 0
        for item in record.items:
            done, rule = completions[item.request_id], rules[item.request_id]
            if item.kind is ItemKind.PROMPT:
                ends_prompt = item.first_position + item.num_rows == len(done.prompt_token_ids)
                needs_head = ends_prompt and item.depth + record.num_passes == 4
            else:
                index = item.first_position - len(done.prompt_token_ids) + 1
                loops = head_loops(rule, done.exit_depths[index], index)
                needs_head = item.depth + 1 in loops
            assert (item.status is not None) == needs_head, (item, record)
            num_head_rows += needs_head
        assert (record.head.num_rows if record.head else 0) == num_head_rows, record
        assert record.num_readbacks == (num_head_rows > 0), record
        expected_reads += num_head_rows > 0
    assert engine.runner.reader.num_reads == expected_reads
    assert engine.stats().num_readbacks == engine.stats().num_heads == expected_reads


def test_mutation_a_head_for_rows_that_cannot_leave_is_noticed(tiny_folder, monkeypatch):
    """The rule of heads, recomputed from what rows can do, does not allow it."""
    original = offer.decode_item
    monkeypatch.setattr(
        offer,
        "decode_item",
        lambda *args, **options: replace(original(*args, **options), passes_to_head=1),
    )
    with pytest.raises(AssertionError, match="ItemRecord"):
        check_heads_and_readbacks(tiny_folder, "mixed", None)


@pytest.mark.parametrize("run_ahead", [0, 1, 2, 4])
def test_a_row_rides_in_every_launch_while_it_lives(tiny_folder, run_ahead):
    """Passes of a token are its depth, and after its end a row rides run_ahead launches at most."""
    engine = make_engine(tiny_folder, run_ahead=run_ahead)
    for request in random_requests(None):
        engine.add_request(*request)
    completions = drain(engine)
    passes, masked, last = Counter(), Counter(), {}
    for record in engine.runner.records:
        for item in record.items:
            if item.kind is not ItemKind.DECODE:
                continue
            if item.depth is None:
                masked[item.request_id] += 1
                continue
            assert record.index - last.get(item.request_id, record.index - 1) == 1, "it rode"
            last[item.request_id] = record.index
            passes[item.request_id] += 1
    for done in completions.values():
        assert passes[done.request_id] == sum(done.exit_depths[1:])
        assert masked[done.request_id] <= run_ahead
    assert engine.stats().num_masked_rows == masked.total()
    assert run_ahead == 0 or masked.total() > 0


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_no_read_waits_for_the_newest_launch_while_another_can_be_dispatched(
    tiny_folder, run_ahead
):
    """Counted at every read: the launches that had been dispatched after the one that is read."""
    engine = make_engine(tiny_folder, run_ahead=run_ahead)
    for request in random_requests(None):
        engine.add_request(*request)
    ahead = Counter()
    collect = engine.runner.collect

    def counting(launched):
        ahead[engine.runner._num_launches - launched.index - 1] += 1
        return collect(launched)

    engine.runner.collect = counting
    drain(engine)
    assert ahead[run_ahead] > 0.9 * ahead.total()
    assert max(ahead) == run_ahead


def test_a_launch_uploads_of_a_decode_row_no_more_than_its_slot(tiny_folder):
    """Whatever max_model_len, P and the options of requests are."""
    sizes = set()
    for length in (32, 96):
        shape = make_engine(tiny_folder, max_model_len=length).runner.executables.shape
        sizes |= {recurrent_layout(replace(shape, max_model_len=length), 32).size}
    assert len(sizes) == 1
    shape = make_engine(tiny_folder).runner.executables.shape
    few, many = (recurrent_layout(replace(shape, max_num_seqs=n), 32).size for n in (8, 9))
    num_item_words = len(fields(PromptArrays))
    assert many - few == 2 + num_item_words, "a slot, once more as one that may finish"


def test_fixed_depth_launches_are_read_only_where_a_row_finishes(tiny_folder):
    engine = make_engine(tiny_folder)
    complete(engine, [[1, 2, 3]] * 4, [SamplingParams(max_tokens=8)] * 4)
    for record in engine.runner.records:
        assert record.num_readbacks == (record.head is not None)
    assert engine.stats().num_heads == 8
    assert engine.stats().num_masked_rows == 0, "every end is foreseen"


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
                is_masked = item.depth is None
                rows[item.request_id] += 0 if is_masked else item.num_rows * record.num_passes
        for done in completions:
            computed = len(done.prompt_token_ids) - done.num_cached_tokens
            assert rows[done.request_id] == 4 * computed + sum(done.exit_depths[1:])
        assert sum(done.num_cached_tokens for done in completions) > 0


def test_fixed_depth_mixed_launches_are_read_for_tokens_alone(tiny_folder):
    engine = make_engine(tiny_folder)
    complete(engine, [[index] * 50 for index in range(16)], [SamplingParams(max_tokens=9)] * 16)
    mixed = [record for record in engine.runner.records if record.is_mixed]
    assert len(mixed) == engine.stats().num_mixed_launches > 10
    assert all(record.num_readbacks == (record.head is not None) for record in mixed)
    stats = engine.stats()
    assert engine.runner.reader.num_reads == stats.num_heads
    launched = [item for record in engine.runner.records for item in record.items]
    prompt_rows = [item.num_rows for item in launched if item.kind is ItemKind.PROMPT]
    assert stats.num_prompt_rows == sum(prompt_rows) > 0
    assert stats.num_decode_rows == 16 * 8 * 4
    assert stats.num_head_rows == stats.num_output_tokens == 16 * 9


def test_the_state_is_donated_and_updated_in_place(tiny_folder):
    engine = make_engine(tiny_folder)
    before = engine.runner.state
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=2))
    engine.step()
    assert before.key_pool.is_deleted()
    shape, executables = engine.runner.executables.shape, engine.runner.executables
    for step in executables.steps(all_rungs(ladders_for(engine.scheduler_config))):
        analysis = executables.get(step).memory_analysis()
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
        rungs = [(LaunchKind.RECURRENT, 32), (LaunchKind.PREFILL, 32), (LaunchKind.HEAD, 8)]
        executables.prepare(rungs)
        temps.append(executables.workspace_bytes)
    assert temps[0] == pytest.approx(temps[1], rel=0.05)


def test_one_int32_buffer_holds_every_array_of_a_launch(tiny_folder):
    shape = make_engine(tiny_folder).runner.executables.shape
    layout = recurrent_layout(shape, 32)
    buffer = np.zeros(layout.size, np.int32)
    views = layout.host_views(buffer)
    views.token_ids[:] = np.arange(32)
    views.decode_slots[:] = 7
    views.prompts.first_rows[:] = 9
    unpacked = layout.unpack(buffer)
    assert unpacked.token_ids.tolist() == list(range(32))
    assert unpacked.decode_slots.tolist() == [7] * 8
    assert (unpacked.prompts.first_rows == 9).all()
    assert np.count_nonzero(buffer) == 31 + 8 + 8


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
    assert engine.stats().num_heads == 2
