"""Bias, penalties and min_tokens: on the device, and through an engine with other requests."""

import random

import jax
import numpy as np
import pytest
from engines import complete, drain, loaded_model, make_engine
from jax.extend.core import jaxprs_in_params
from numpy_sampler import numpy_draw, numpy_edited

from looped.device.state import DeviceState
from looped.errors import UsageError
from looped.programs.head import head
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.programs.sampling.forms import CONDITIONAL
from looped.programs.sampling.logit_edits import (
    ENDS_REQUEST,
    IN_PROMPT,
    ONE_OUTPUT,
    count_outputs,
    edit_logits,
)
from looped.programs.sampling.sampler import SamplingRows
from looped.reference import generate
from looped.sampling_params import SamplingParams

VOCAB = 64
STOPS = tuple(range(0, 512, 3))
OPTIONS = {
    "none": {},
    "greedy bias": {"logit_bias": {7: 100.0, 9: 3.0, 11: -100}},
    "bias": {"logit_bias": dict.fromkeys(range(300), 2.5), "temperature": 1.0},
    "repetition": {"repetition_penalty": 1.5},
    "repeat more": {"repetition_penalty": 0.6, "temperature": 0.8},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 0.7, "temperature": 0.3},
    "negative frequency": {"frequency_penalty": -2.0},
    "min_p": {"min_p": 0.3, "temperature": 1.5},
    "min_tokens": {"min_tokens": 6, "stop_token_ids": STOPS, "temperature": 1.5},
    "greedy min_tokens": {"min_tokens": 9, "stop_token_ids": STOPS},
    "everything": {
        "logit_bias": {5: 1.0, 6: -2.0},
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "temperature": 1.2,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.05,
        "min_tokens": 3,
        "stop_token_ids": STOPS,
    },
}


def params_of(name, **options):
    return SamplingParams(
        **{"max_tokens": 12, "seed": 1000 + list(OPTIONS).index(name)} | OPTIONS[name] | options
    )


def prompt_of(name):
    rng = random.Random(name)
    # The reference compiles a program for every length.
    return [rng.randrange(512) for _ in range(rng.choice([3, 21, 40]))]


def check_against_numpy(folder, prompt, params, completion):
    """Every token is what the NumPy sampler draws from the reference's logits at that place."""
    outputs = list(completion.token_ids)
    reference = generate(
        loaded_model(folder).model, prompt, max_tokens=len(outputs), forced_token_ids=outputs
    )
    for index, token in enumerate(reference):
        assert outputs[index] == numpy_draw(token.logits, prompt, outputs[:index], params)
    has_stopped = outputs[-1] in params.stop_token_ids
    assert has_stopped or len(outputs) == params.max_tokens


@pytest.mark.parametrize("seed", range(5))
def test_edits_equal_numpy_and_leave_rows_without_them_their_bits(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (8, VOCAB)).astype(np.float32)
    marks, bias = np.zeros((8, VOCAB), np.int32), np.zeros((8, VOCAB), np.float32)
    expected, values = [], {"is_edited": [], "output_index": []}
    stops = [3, 5, 8]
    for row in range(8):
        prompt = rng.integers(0, VOCAB, 10).tolist()
        outputs = rng.integers(0, VOCAB, 20).tolist()
        params = SamplingParams(
            logit_bias={int(token): float(rng.normal()) for token in rng.integers(0, VOCAB, 5)},
            repetition_penalty=float(rng.uniform(0.5, 2)),
            presence_penalty=float(rng.uniform(-2, 2)),
            frequency_penalty=float(rng.uniform(-2, 2)),
            min_tokens=int(rng.integers(0, 40)),
        )
        marks[row, prompt] = IN_PROMPT
        marks[row, stops] |= ENDS_REQUEST
        np.add.at(marks[row], outputs, ONE_OUTPUT)
        bias[row, list(params.logit_bias)] = list(params.logit_bias.values())
        is_edited = row % 3 > 0
        edited = numpy_edited(logits[row], prompt, outputs, params, stops)
        expected.append(edited if is_edited else logits[row])
        values["is_edited"].append(int(is_edited))
        values["output_index"].append(len(outputs))
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens"):
            values.setdefault(name, []).append(getattr(params, name))
    unused = dict.fromkeys(
        ("temperature", "top_k", "top_p", "min_p", "seed", "sample_index", "wants_top")
    )
    rows = SamplingRows(**unused, **{name: np.asarray(listed) for name, listed in values.items()})
    got = np.asarray(jax.jit(edit_logits)(logits, marks, bias, rows))
    np.testing.assert_allclose(got, np.stack(expected), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got[::3], logits[::3])


def test_only_edited_rows_count_their_tokens():
    is_edited = np.asarray([1, 0, 1, 1])
    marks = np.full((3, VOCAB), IN_PROMPT)
    slots, token_ids = np.asarray([2, 1, 0, 3]), np.asarray([5, 6, 5, 7])
    after = np.asarray(jax.jit(count_outputs)(marks, slots, token_ids, is_edited)) - IN_PROMPT
    assert np.argwhere(after).tolist() == [[0, 5], [2, 5]]
    assert after.sum() == 2 * ONE_OUTPUT


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_alone_is_the_numpy_sampler_on_the_reference_logits(tiny_folder, name):
    (done,) = complete(make_engine(tiny_folder), [prompt_of(name)], [params_of(name)])
    check_against_numpy(tiny_folder, prompt_of(name), params_of(name), done)


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_each_option_in_a_crowd_of_all_the_others_is_the_numpy_sampler(tiny_folder, policy):
    engine = make_engine(tiny_folder, policy=policy)
    prompts, params = [prompt_of(name) for name in OPTIONS], [params_of(name) for name in OPTIONS]
    for prompt, options, done in zip(
        prompts, params, complete(engine, prompts, params), strict=True
    ):
        check_against_numpy(tiny_folder, prompt, options, done)
    if policy == "mixed":
        assert engine.stats().num_mixed_launches > 5


def test_options_are_deterministic_to_the_bit_alone_and_beside_any_neighbours(tiny_folder):
    def bits(done):
        return done.token_ids, np.asarray(done.logprobs, np.float32).tobytes()

    names = list(OPTIONS)
    alone = {}
    for name in names:
        engine = make_engine(tiny_folder, deterministic=True)
        (alone[name],) = complete(engine, [prompt_of(name)], [params_of(name)])
    for order in (names, names[::-1]):
        engine = make_engine(tiny_folder, deterministic=True)
        crowd = complete(engine, list(map(prompt_of, order)), list(map(params_of, order)))
        assert [bits(done) for done in crowd] == [bits(alone[name]) for name in order]


def test_the_next_owner_of_a_slot_sees_nothing_of_the_last(tiny_folder):
    names = ["everything", "none", "repetition", "greedy bias", "presence", "none", "everything"]
    engine = make_engine(tiny_folder)
    for name in names:
        (done,) = complete(engine, [prompt_of(name)], [params_of(name)])
        check_against_numpy(tiny_folder, prompt_of(name), params_of(name), done)
    assert {item.slot for record in engine.runner.records for item in record.items} == {0}
    assert engine.stats().num_writes == len(names) + 5


def test_a_prompt_from_the_prefix_cache_counts_as_well(tiny_folder):
    engine = make_engine(tiny_folder)
    prompt, params = list(range(100, 140)), params_of("repetition", repetition_penalty=3.0)
    for hits in (0, 32):
        (done,) = complete(engine, [prompt], [params])
        assert done.num_cached_tokens == hits
        check_against_numpy(tiny_folder, prompt, params, done)


def test_an_abort_at_any_step_leaves_its_slot_clean_for_the_next(tiny_folder):
    for step in range(0, 30, 4):
        engine = make_engine(tiny_folder)
        engine.add_request("keep", prompt_of("everything"), params_of("everything"))
        engine.add_request("drop", [1, 2, 3], params_of("negative frequency"))
        early = {}
        for _ in range(step):
            early |= {done.request_id: done for done in engine.step().completions}
        slots = slots_of(engine, "drop")
        engine.abort("drop")
        for name in ("presence", "none"):
            engine.add_request(name, prompt_of(name), params_of(name))
        completions = early | drain(engine)
        check_against_numpy(
            tiny_folder, prompt_of("everything"), params_of("everything"), completions["keep"]
        )
        for name in ("presence", "none"):
            check_against_numpy(tiny_folder, prompt_of(name), params_of(name), completions[name])
        assert slots <= slots_of(engine, "presence")


def slots_of(engine, name):
    """The slot of a request, if it has ever been in a launch."""
    records = engine.runner.records
    return {item.slot for record in records for item in record.items if item.request_id == name}


def test_a_request_with_edits_costs_one_upload_more_and_others_none(tiny_folder, monkeypatch):
    sent = []
    device_put = jax.device_put

    def counting(value, *arguments, **options):
        sent.append(value)
        return device_put(value, *arguments, **options)

    engine = make_engine(tiny_folder)
    monkeypatch.setattr(jax, "device_put", counting)
    with jax.transfer_guard_host_to_device("disallow"):
        complete(engine, list(map(prompt_of, OPTIONS)), list(map(params_of, OPTIONS)))
    stats = engine.stats()
    num_edited = len(OPTIONS) - len({"none", "min_p"})
    assert stats.num_writes == len(OPTIONS) + num_edited, "a row of the table each, and edits"
    assert stats.num_uploads == len(engine.runner.records)
    assert len(sent) == stats.num_uploads + stats.num_writes


def test_a_head_without_options_reads_no_marks_or_bias_and_looks_for_no_top(tiny_folder):
    """Outside conditions on data nothing touches the [slots, V] arrays or the pools."""
    shape = make_engine(tiny_folder).runner.executables.shape
    model = loaded_model(tiny_folder).model
    parameters = Parameters(model=model, lookahead=LookaheadHeads.create(model.config, seed=0))
    state = DeviceState.zeros(shape)
    traced = jax.make_jaxpr(lambda state: head(shape, CONDITIONAL, 4, parameters, state))(state)
    wide = {state.token_marks.shape, state.key_pool.shape}
    outside = list(equations_outside_conditions(traced.jaxpr))
    assert "top_k" not in {equation.primitive.name for equation in outside}
    assert "dot_general" not in {equation.primitive.name for equation in outside}
    readers = {
        equation.primitive.name
        for equation in outside
        if any(getattr(variable.aval, "shape", None) in wide for variable in equation.invars)
    }
    assert "cond" in readers
    assert readers <= {"cond", "jit", "pjit"}


def equations_outside_conditions(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "cond":
            for inner in jaxprs_in_params(equation.params):
                yield from equations_outside_conditions(inner)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {512: 1.0}}, r"logit_bias must name token ids in 0\.\.511, got 512"),
        ({"logit_bias": {-1: 1.0}}, r"logit_bias must name token ids in 0\.\.511, got -1"),
        (
            {"min_tokens": 1, "stop_token_ids": range(512)},
            "min_tokens must be 0 where every token is a stop id, got 1",
        ),
    ],
)
def test_options_that_do_not_fit_the_vocabulary_are_refused_by_name(tiny_folder, options, message):
    engine = make_engine(tiny_folder)
    with pytest.raises(UsageError, match=message):
        engine.add_request("a", [1], SamplingParams(**options))
    assert not engine.has_unfinished_requests()
