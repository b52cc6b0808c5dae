"""The record of gates: what the model's gate says of every token after every loop, and no more."""

import json

import jax
import numpy as np
import pytest
from command_line import looped
from engines import NUM_SLOTS, SMALL_FLAGS, complete, drain, make_engine, second_fixture_is_slow

from looped.engine.observer import LaunchObserver
from looped.errors import LoopedError, UsageError
from looped.record.gate_record import (
    GateRecord,
    GateRecorder,
    read_gate_record,
    recording_gates,
    write_gate_record,
)
from looped.reference import DenseCache, run_loop
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, RowStatus

PROMPTS = [[311, 225, 7], list(range(3, 43)), [9]]
HALF_STEP = 2.0**-11
"""Largest rounding of a probability to float16: half its spacing below 1."""
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)


def recording_engine(folder, path, **options):
    recorder = GateRecorder(path, LaunchObserver(), "tiny")
    return make_engine(folder, observer=recorder, **options), recorder


@pytest.fixture(scope="module")
def recorded(tiny_folder, tmp_path_factory):
    """An engine that has recorded the prompts, its completions and the record."""
    path = tmp_path_factory.mktemp("gates") / "gates.npz"
    engine, recorder = recording_engine(tiny_folder, path)
    engine.warm_up()
    completions = complete(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    recorder.close()
    return engine, completions, read_gate_record(path)


@second_fixture_is_slow
def test_gates_are_the_oracles_at_every_position_and_loop(golden, tmp_path):
    """A bias makes the token after the cut prompt the one that stands there."""
    engine, recorder = recording_engine(golden.folder, tmp_path / "gates.npz")
    places = [
        (index, cut)
        for index, prompt in enumerate(golden.prompts)
        for cut in range(1, min(len(prompt), 80), 7)
    ]
    prompts = [golden.prompts[index][:cut] for index, cut in places]
    forced = [
        SamplingParams(
            max_tokens=2, ignore_eos=True, logit_bias={golden.prompts[index][cut]: 100.0}
        )
        for index, cut in places
    ]
    completions = complete(engine, prompts, forced)
    recorder.close()
    record = read_gate_record(tmp_path / "gates.npz")
    assert len(places) > 8
    for request, (index, cut) in enumerate(places):
        assert completions[request].token_ids[0] == golden.prompts[index][cut]
        first, second = record.of_request(request)
        assert np.isnan(first).all()
        expected = jax.nn.sigmoid(golden.arrays[f"gates_{index}"][:, cut])
        np.testing.assert_allclose(second, expected, rtol=0, atol=HALF_STEP + 1e-5)


def test_gates_of_generated_tokens_are_those_of_one_pass_over_the_sequence(recorded):
    engine, completions, record = recorded
    model, num_loops = engine.loaded.model, engine.model_config.num_loops
    for index, completion in enumerate(completions):
        token_ids = [*completion.prompt_token_ids, *completion.token_ids[:-1]]
        positions = np.arange(len(token_ids))
        rows, cache = model.embed(np.array(token_ids)), DenseCache.zeros(model, 64)
        gates = []
        for depth in range(num_loops):
            rows, logits, cache = run_loop(model, rows, positions, depth, cache)
            gates.append(jax.nn.sigmoid(logits))
        expected = np.stack(gates, axis=1)[len(completion.prompt_token_ids) :]
        found = record.of_request(index)
        assert found.shape == (len(completion.token_ids), num_loops)
        assert np.isnan(found[0]).all()
        np.testing.assert_allclose(found[1:], expected, rtol=0, atol=HALF_STEP + 1e-5)


def test_a_record_says_what_it_is_of(recorded):
    record = recorded[2]
    assert record.probabilities.dtype == np.float16
    assert record.offsets.dtype == np.int64
    assert record.offsets.tolist() == [0, 6, 12, 18]
    meta = record.meta
    assert (meta["schema"], meta["num_loops"], meta["model"]) == (1, 4, "tiny")


def test_tokens_are_the_same_and_nothing_more_is_compiled(recorded, tiny_folder):
    engine, completions, _ = recorded
    before = engine.stats().num_compilations
    assert engine.runner.executables.num_compilations == before
    plain = complete(make_engine(tiny_folder), PROMPTS, [PARAMS] * len(PROMPTS))
    assert [done.token_ids for done in plain] == [done.token_ids for done in completions]
    assert all(set(done.exit_depths) == {4} for done in completions)


def test_requests_cause_no_compilation(tiny_folder, tmp_path):
    engine, recorder = recording_engine(tiny_folder, tmp_path / "gates.npz")
    engine.warm_up()
    complete(engine, PROMPTS, [PARAMS] * len(PROMPTS))  # NumPy and JAX at home
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    before = engine.stats().num_compilations
    complete(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    recorder.close()
    jax.monitoring.unregister_event_duration_listener(listen)
    assert engine.stats().num_compilations == before
    assert seen == []


def test_gates_come_with_the_tokens_and_cost_no_read(recorded, tiny_folder):
    """A launch is read where a token leaves, whether gates are recorded or not."""
    engine, _, _ = recorded
    records = list(engine.runner.records)
    for record in records:
        brings_tokens = any(item.status is RowStatus.LEFT for item in record.items)
        assert record.num_readbacks == (record.head is not None) == brings_tokens
    assert engine.stats().num_readbacks == sum(record.num_readbacks for record in records)
    plain = make_engine(tiny_folder)
    complete(plain, PROMPTS, [PARAMS] * len(PROMPTS))
    assert plain.stats().num_readbacks == engine.stats().num_readbacks
    assert plain.stats().num_launches == engine.stats().num_launches


def test_an_engine_that_records_nothing_brings_no_gates(tiny_folder):
    engine, seen = make_engine(tiny_folder), []
    applied = engine._observer.applied
    engine._observer.applied = lambda record, tokens, *others: (
        seen.extend(tokens),
        applied(record, tokens, *others),
    )
    complete(engine, PROMPTS, [PARAMS] * len(PROMPTS))
    assert len(seen) == 3 * PARAMS.max_tokens
    assert all(token.gates is None for token in seen)


def test_an_aborted_request_and_one_under_way_have_the_tokens_that_came(tiny_folder, tmp_path):
    engine, recorder = recording_engine(tiny_folder, tmp_path / "gates.npz")
    names = "abcdefghi"
    assert len(names) == NUM_SLOTS + 1
    for name in names:
        engine.add_request(name, [5, 6], SamplingParams(max_tokens=40, ignore_eos=True))
    num_tokens = 0
    while num_tokens < NUM_SLOTS * 3:
        num_tokens += len(engine.step().tokens)
    engine.step()
    engine.abort("a")
    recorder.close()
    record = read_gate_record(tmp_path / "gates.npz")
    assert record.offsets.tolist() == [*range(0, 3 * NUM_SLOTS + 1, 3), 3 * NUM_SLOTS]
    assert np.isnan(record.probabilities).sum() == NUM_SLOTS * 4
    for name in names[1:]:  # and what comes now is nobody's
        engine.abort(name)
    drain(engine)


@pytest.mark.parametrize(
    ("exits", "message"),
    [
        (ExitOptions(threshold=0.5), "got exit threshold 0.5; try --exit-threshold 1"),
        (ExitOptions(trace=(4, 1)), "got exit mode trace; try --exit-mode ouro"),
        (ExitOptions(mode=ExitMode.OURO_DELAYED), "got exit mode ouro_delayed"),
        (ExitOptions(max_loops=3), "got max_loops 3; try --max-loops 4"),
    ],
)
def test_a_request_that_may_exit_early_is_refused(tiny_folder, tmp_path, exits, message):
    engine, _ = recording_engine(tiny_folder, tmp_path / "gates.npz")
    with pytest.raises(UsageError, match=f"request 'a': gates are recorded at full.*{message}"):
        engine.add_request("a", [1], SamplingParams(exit=exits))
    assert not engine.has_unfinished_requests()


def test_a_place_that_is_taken_or_wrong_is_refused(tmp_path):
    (tmp_path / "gates.npz").write_text("mine")
    for path, message in (
        (tmp_path / "gates.npz", "exists; choose another name"),
        (tmp_path / "gates.json", "must end in .npz"),
        (tmp_path / "no" / "gates.npz", "is not a folder"),
    ):
        with (
            pytest.raises(UsageError, match=message),
            recording_gates(path, LaunchObserver(), model="tiny"),
        ):
            pass
    assert (tmp_path / "gates.npz").read_text() == "mine"


def test_without_a_path_or_a_request_there_is_no_file(tmp_path, caplog):
    observer = LaunchObserver()
    with recording_gates(None, observer, model="tiny") as same:
        assert same is observer
    with recording_gates(tmp_path / "gates.npz", observer, model="tiny") as recorder:
        assert recorder.records_gates
    assert not list(tmp_path.iterdir())
    assert "no request came" in caplog.text


def single_array(path):
    with path.open("wb") as file:
        np.save(file, [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(b"no zip"), "expected an .npz that --record-gates wrote"),
        (lambda path: path.write_bytes(b""), "is not a gate record"),
        (single_array, "is not a gate record"),
        (lambda path: path.write_bytes(path.read_bytes()[:99]), "is not a gate record"),
        (lambda path: np.savez(path, offsets=[0]), "is not a gate record"),
    ],
)
def test_what_is_no_record_is_one_line(tmp_path, change, message):
    path = tmp_path / "gates.npz"
    write_gate_record(path, GateRecord(np.zeros((0, 4), np.float16), np.zeros(1, np.int64), {}))
    with pytest.raises(LoopedError, match="schema is None, this version of looped reads 1"):
        read_gate_record(path)
    change(path)
    with pytest.raises(LoopedError, match=message):
        read_gate_record(path)


def test_generate_records_gates_beside_the_same_text(tiny_folder, tmp_path):
    gates, log = tmp_path / "gates.npz", tmp_path / "log.jsonl"
    options = ("--model", tiny_folder, "--max-tokens", 3, "--ignore-eos", *SMALL_FLAGS)
    plain = looped("generate", "hello", *options).stdout
    done = looped("generate", "hello", *options, "--record-gates", gates, "--launch-log", log)
    assert done.stdout == plain
    record = read_gate_record(gates)
    assert record.offsets.tolist() == [0, 3]
    assert record.meta["model"] == str(tiny_folder)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["records_gates"] for line in lines if line["type"] == "engine"] == [True]
    assert sum(line["num_readbacks"] for line in lines if line["type"] == "launch") == 3


def test_generate_refuses_early_exits_beside_a_record_at_once(tiny_folder, tmp_path):
    gates = tmp_path / "gates.npz"
    for options, message in (
        (("--exit-threshold", 0.5), "got exit threshold 0.5; try --exit-threshold 1"),
        (("--max-loops", 2), "got max_loops 2"),
        (("--exit-mode", "trace"), "needs a trace"),
    ):
        done = looped(
            "generate", "x", "--model", tiny_folder, "--record-gates", gates, *options, check=False
        )
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    (tmp_path / "trace.json").write_text("[[4]]")
    done = looped(
        "generate", "x", "--model", "none", "--record-gates", gates,
        "--exit-trace", tmp_path / "trace.json", check=False,
    )  # fmt: skip
    assert (done.returncode, "leave --exit-trace out" in done.stderr) == (2, True)
    assert not gates.exists()
