"""The training forward is the reference model: logits and gates at every loop, packed or alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import loaded_model, logits_and_gates

from looped.convert import HuggingFaceFolder
from looped.models import parameter_shapes
from looped.models.parameters import stored_parameters
from looped.reference import generate, head_logits
from looped.training.batches import Batch, Example
from looped.training.config import PretrainConfig
from looped.training.exits import confident_exits
from looped.training.forward import loop_losses, loop_states

# Float32 over four loops: the two differ in the order of sums alone.
CLOSE = {"rtol": 0, "atol": 2e-4}


def packed(prompts, sequence_length):
    """All prompts in one row, and the last once more in a second."""
    batch = Batch.empty(2, sequence_length)
    start = 0
    for index, prompt in enumerate(prompts):
        start = batch.place(0, start, index + 1, Example(prompt, [0]), 1.0)
    batch.place(1, 0, 1, Example(prompts[-1], [0]), 1.0)
    return batch


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_logits_and_gates_of_every_loop_are_the_references(golden, layers):
    model = loaded_model(golden.folder, "float32", layers)
    plain = loaded_model(golden.folder, "float32")
    prompts = [prompt[:20] for prompt in golden.prompts[:3]]
    batch = packed(prompts, 64)
    states = jax.jit(loop_states)(model.model, batch)
    places = np.flatnonzero(np.asarray(batch.segments))
    expected = [logits_and_gates(plain.model, prompt) for prompt in [*prompts, prompts[-1]]]
    wanted = [np.concatenate(one, axis=1) for one in zip(*expected, strict=True)]
    logits = np.stack([head_logits(model.model, rows) for rows in states])
    gate_logits = jax.jit(model.model.gate_logits)
    gates = np.stack([gate_logits(rows) for rows in states])
    np.testing.assert_allclose(logits[:, places], wanted[0], **CLOSE)
    np.testing.assert_allclose(gates[:, places], wanted[1], **CLOSE)


def test_tokens_that_leave_early_leave_behind_what_they_do_in_the_reference(golden):
    """A trace of exits, over tokens that are given: the reference's last-exited KV."""
    model = loaded_model(golden.folder).model
    prompt, completion = [5, 90, 31, 7, 20, 66], [41, 8, 8, 93, 12, 50, 3, 77, 29]
    trace = [4, 1, 3, 2, 4, 1, 1, 2, 3]
    expected = [
        token.logits
        for token in generate(
            model,
            prompt,
            max_tokens=len(trace),
            mode="trace",
            trace=trace,
            forced_token_ids=completion,
        )
    ]
    batch = Batch.empty(1, 20)
    batch.place(0, 0, 1, Example(prompt, completion), 0.0)
    exit_loops = np.full(20, 4)
    first = len(prompt) - 1
    exit_loops[first : first + len(trace)] = trace
    assert list(np.flatnonzero(batch.is_generated)) == list(range(6, 14))

    @jax.jit
    def states_with_exits(model, batch, exit_loops):
        return loop_states(model, batch, leaves=lambda loop, rows: exit_loops <= loop)

    states = states_with_exits(model, batch, jnp.asarray(exit_loops))
    logits = np.asarray(head_logits(model, states[-1]))[first : first + len(trace)]
    np.testing.assert_allclose(logits, expected, **CLOSE)


@pytest.mark.long
def test_confident_tokens_leave_in_the_share_of_rows_that_is_asked_for(square_golden):
    model = loaded_model(square_golden.folder).model
    batch = Batch.empty(4, 20)
    for row in range(4):
        batch.place(row, 0, 1, Example([5, 90, 31, 7, 20, 66], [5] * 9), 0.0)
    config = PretrainConfig(exit_share=0.5, exit_loss=1e9)
    leaves = confident_exits(model, batch, config)
    states = np.asarray(loop_states(model, batch, leaves=leaves)).reshape(4, 4, 20, -1)
    full = np.asarray(loop_states(model, batch)).reshape(4, 4, 20, -1)
    np.testing.assert_array_equal(states[:, 0::2], full[:, 0::2])
    generated = np.asarray(batch.is_generated)[1]
    assert (states[1:, 1::2][:, :, generated] == states[:1, 1::2][:, :, generated]).all()
    assert confident_exits(model, batch, PretrainConfig(exit_share=0.0)) is None


def test_fewer_loops_are_the_first_ones(square_golden):
    model = loaded_model(square_golden.folder).model
    batch = packed([square_golden.prompts[0][:20]], 64)
    states = jax.jit(loop_states, static_argnames="num_loops")
    two, all_four = states(model, batch, num_loops=2), states(model, batch)
    np.testing.assert_array_equal(two, np.asarray(all_four)[:2])


@pytest.mark.long
def test_rematerialised_gradients_are_the_same(square_golden):
    model = loaded_model(square_golden.folder).model
    batch = packed([square_golden.prompts[0][:20]], 64)

    def loss(model, is_rematerialised):
        states = loop_states(model, batch, is_rematerialised=is_rematerialised)
        losses = loop_losses(model, states, batch, is_rematerialised=is_rematerialised)
        return jnp.mean(losses * jnp.reshape(batch.weights, -1))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    for one, other in zip(
        jax.tree.leaves(gradient(model, False)), jax.tree.leaves(gradient(model, True)), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_a_models_tensors_are_those_it_was_loaded_from(golden, layers):
    loaded = loaded_model(golden.folder, "float32", layers)
    source = HuggingFaceFolder(golden.folder)
    tensors = dict(stored_parameters(loaded.model))
    assert {name: array.shape for name, array in tensors.items()} == parameter_shapes(loaded.config)
    for name, array in tensors.items():
        np.testing.assert_array_equal(np.asarray(array), source.read(name).astype(np.float32))
