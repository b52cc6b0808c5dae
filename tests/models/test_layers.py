"""Layers unrolled and scanned: one model, one set of weights, one answer, one state in place."""

import gc
import json

import jax
import numpy as np
import pytest
from command_line import looped
from engines import (
    complete,
    drain,
    loaded_model,
    logits_and_gates,
    make_engine,
    run_params,
    second_fixture_is_slow,
)

from looped.engine.llm_engine import LLMEngine
from looped.engine.options import LAYER_FORMS, EngineConfig
from looped.errors import UsageError
from looped.loading import load_folder
from looped.models.ouro import OuroModel
from looped.sampling_params import SamplingParams

# The same sums in another program: float32, absolute, over four loops.
TOLERANCE = 2e-5


def every_golden(golden, layers, **options):
    engine = make_engine(golden.folder, layers=layers, **options)
    prompts = [golden.prompts[run["prompt"]] for run in golden.runs]
    return engine, complete(engine, prompts, [run_params(run) for run in golden.runs])


@second_fixture_is_slow
@pytest.mark.parametrize("policy", ["mixed", "atomic"])
@pytest.mark.long
def test_scanned_layers_give_the_goldens(golden, policy):
    engine, completions = every_golden(golden, "scanned", policy=policy)
    assert engine.runner.executables.layers == "scanned"
    for run, completion in zip(golden.runs, completions, strict=True):
        assert list(completion.token_ids) == run["token_ids"]
        assert list(completion.exit_depths) == run["exit_depths"]


@pytest.mark.slow
def test_both_forms_keep_the_same_keys_and_values(square_golden):
    pools = {}
    for layers in LAYER_FORMS:
        engine, _ = every_golden(square_golden, layers)
        state = engine.runner.state
        pools[layers] = np.asarray(state.key_pool), np.asarray(state.value_pool)
    for unrolled, scanned in zip(*pools.values(), strict=True):
        assert unrolled.any(axis=(1, 2, 3)).sum() > 100
        np.testing.assert_allclose(scanned, unrolled, rtol=0, atol=TOLERANCE)


def test_logits_and_gates_of_both_forms_agree(golden):
    prompt = golden.prompts[1]
    results = [
        logits_and_gates(loaded_model(golden.folder, layers=layers).model, prompt)
        for layers in LAYER_FORMS
    ]
    for unrolled, scanned in zip(*results, strict=True):
        np.testing.assert_allclose(scanned, unrolled, rtol=1e-5, atol=TOLERANCE)


def test_stacked_layers_are_few_arrays_and_the_same_bytes(tiny_folder):
    sizes = {}
    for layers in LAYER_FORMS:
        engine = make_engine(tiny_folder, layers=layers)
        leaves = jax.tree.leaves(engine._parameters)
        sizes[layers] = len(leaves), sum(leaf.nbytes for leaf in leaves)
        assert engine.memory_plan.weights == sizes[layers][1]
    assert sizes["scanned"][0] == sizes["unrolled"][0] - 2 * 8  # three layers of eight arrays
    assert sizes["scanned"][1] == sizes["unrolled"][1]


def test_stacking_leaves_no_second_copy_of_the_weights(tiny_folder):
    model = load_folder(tiny_folder, layers="unrolled").model
    before = jax.tree.leaves(model.layers)
    wanted = [np.stack(parts) for parts in zip(*map(jax.tree.leaves, model.layers), strict=True)]
    gc.collect()
    alive = sum(array.nbytes for array in jax.live_arrays())
    model.stack_layers()
    assert all(array.is_deleted() for array in before)
    gc.collect()
    assert sum(array.nbytes for array in jax.live_arrays()) == alive
    for got, want in zip(jax.tree.leaves(model.layers), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    model.stack_layers()
    assert model.is_stacked


@pytest.mark.parametrize("layers", LAYER_FORMS)
def test_every_step_updates_the_whole_state_in_place(tiny_folder, layers):
    """Aliased bytes cover the state, and no temporary is as large as a pool."""
    engine = make_engine(tiny_folder, layers=layers, policy="atomic")
    state_bytes = sum(array.nbytes for array in jax.tree.leaves(engine.runner.state))
    pool_bytes = engine.runner.state.key_pool.nbytes
    executables = engine.runner.executables
    rungs = [(kind, ladder[-1]) for kind, ladder in engine._ladders.items()]
    for step in executables.steps(rungs):
        analysis = executables.get(step).memory_analysis()
        assert analysis.alias_size_in_bytes >= state_bytes, step
        assert analysis.temp_size_in_bytes < pool_bytes, step


def test_a_model_of_the_other_form_is_refused(tiny_folder):
    with pytest.raises(UsageError, match=r"load_folder.*'scanned'"):
        LLMEngine(loaded_model(tiny_folder), EngineConfig(layers="scanned", num_blocks=64))


def test_executables_of_the_other_form_are_refused(tiny_folder):
    unrolled = make_engine(tiny_folder)
    scanned = loaded_model(tiny_folder, layers="scanned")
    with pytest.raises(UsageError, match=r"'unrolled'\).*'scanned'\)"):
        LLMEngine(scanned, unrolled.config, executables=unrolled.runner.executables)


def test_without_a_choice_the_engine_takes_the_form_that_was_loaded(square_golden):
    run = square_golden.runs[0]
    scanned = make_engine(square_golden.folder, layers="scanned")
    loaded = loaded_model(square_golden.folder, layers="scanned")
    engine = LLMEngine(
        loaded, make_engine(square_golden.folder).config, executables=scanned.runner.executables
    )
    engine.add_request("a", square_golden.prompts[run["prompt"]], run_params(run))
    assert list(drain(engine)["a"].token_ids) == run["token_ids"]
    assert isinstance(loaded.model, OuroModel)


def test_a_cpu_loads_unrolled_layers_unless_told_otherwise(tiny_folder):
    assert load_folder(tiny_folder).layers == "unrolled"
    assert load_folder(tiny_folder, layers="scanned").layers == "scanned"


@pytest.mark.parametrize("layers", ["looped", "", "Scanned"])
def test_other_forms_are_refused_by_name(tiny_folder, layers):
    message = f"layers must be one of unrolled, scanned; got {layers!r}"
    with pytest.raises(UsageError, match=message):
        EngineConfig(layers=layers)
    with pytest.raises(UsageError, match=message):
        load_folder(tiny_folder, layers=layers)


@pytest.mark.long
def test_scanned_layers_take_samples_and_scores(tiny_folder):
    params = SamplingParams(max_tokens=4, n=2, temperature=1.0, seed=3, prompt_logprobs=2)
    results = []
    for layers in LAYER_FORMS:
        engine = make_engine(tiny_folder, layers=layers)
        engine.add_request("a", [5, 6, 7, 8], params)
        completions = []
        while engine.has_unfinished_requests():
            completions += engine.step().completions
        results.append(sorted(completion.token_ids for completion in completions))
    assert results[0] == results[1]


@pytest.mark.slow
def test_the_command_takes_either_form_and_refuses_others(square_golden):
    options = ("generate", "--model", square_golden.folder, "--prompt-ids", "5,6,7", "--json")
    options += ("--max-tokens", 4, "--layers")
    outputs = [json.loads(looped(*options, layers).stdout) for layers in LAYER_FORMS]
    assert outputs[0]["token_ids"] == outputs[1]["token_ids"]
    refused = looped(*options, "both", check=False)
    assert refused.returncode == 2
    assert "layers must be one of unrolled, scanned; got 'both'" in refused.stderr
