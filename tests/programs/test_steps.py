"""One mixed launch, looked at row by row: what it writes, and above all what it leaves alone."""

from dataclasses import fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import loaded_model, make_engine

from looped.device.state import DeviceState
from looped.pallas_kernels import NO_BLOCK
from looped.programs.coda import coda as coda_step
from looped.programs.coda import coda_layout
from looped.programs.gates import GATE_NONE, GATE_OURO, GATE_RANDOM_LOOKAHEAD, GATE_RECORDED
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.programs.prefill import PrefillArrays, prefill_layout
from looped.programs.prefill import prefill as prefill_step
from looped.programs.prompt_arrays import RowMap
from looped.programs.recurrent import recurrent as recurrent_step
from looped.programs.recurrent import recurrent_layout
from looped.reference import head_logits
from looped.sampling_params import MAX_LOGPROBS


def on_host(step, num_static):
    """The step as one program for all tests here, and what it returns in NumPy."""
    jitted = jax.jit(step, static_argnums=tuple(range(num_static)))
    return lambda *arguments: jax.tree.map(np.asarray, jitted(*arguments))


coda, prefill = on_host(coda_step, 1), on_host(prefill_step, 2)
recurrent = on_host(recurrent_step, 2)
gate_logits = jax.jit(lambda parameters, rows: parameters.model.gate_logits(rows))

ROWS = 16
NUM_SLOTS = 8
PROMPT_FIRST_ROW, PROMPT_ROWS = 3, 5


@pytest.fixture(scope="module")
def shape(request):
    return make_engine(request.getfixturevalue("tiny_folder")).runner.executables.shape


@pytest.fixture(scope="module")
def parameters(request):
    model = loaded_model(request.getfixturevalue("tiny_folder")).model
    return Parameters(model=model, lookahead=LookaheadHeads.create(model.config, seed=0))


def random_state(shape):
    """Every array holds noise, so that whatever is left alone can be recognised."""
    rng = np.random.default_rng(5)
    zeros = jax.eval_shape(lambda: DeviceState.zeros(shape))
    values = {}
    for field in fields(zeros):
        array = getattr(zeros, field.name)
        if array.dtype == jnp.int32:
            noise = np.arange(array.size, dtype=np.int32).reshape(array.shape) + 20
        else:
            noise = rng.random(array.shape, np.float32)
        values[field.name] = noise
    return DeviceState(**values)


def mixed_arrays(shape, *, runs_gate=1, depth_of_prompt=1, finish_slot=NUM_SLOTS):
    """Decode rows in slots 6, 1 and 4, then one prompt item of five rows in place 2."""
    layout = recurrent_layout(shape, ROWS)
    arrays = layout.host_views(np.zeros(layout.size, np.int32))
    arrays.runs_gate[...] = runs_gate
    arrays.decode_slots[:] = NUM_SLOTS
    arrays.decode_slots[:3] = [6, 1, 4]
    arrays.decode_depths[:3] = [0, 2, 3]
    arrays.decode_positions[:3] = [4, 17, 9]
    arrays.decode_gates[:3] = [GATE_OURO, GATE_RANDOM_LOOKAHEAD, GATE_NONE]
    arrays.decode_tables[0, :1] = [10]
    arrays.decode_tables[1, :2] = [11, 12]
    arrays.decode_tables[2, :1] = [13]
    arrays.prompts.finish_slots[:] = NUM_SLOTS
    arrays.prompts.places[0] = 2
    arrays.prompts.first_positions[0] = 14
    arrays.prompts.first_rows[0] = PROMPT_FIRST_ROW
    arrays.prompts.num_rows[0] = PROMPT_ROWS
    arrays.prompts.is_embedded[0] = depth_of_prompt > 0
    arrays.prompts.finish_slots[0] = finish_slot
    arrays.prompt_tables[0, :2] = [20, 21]
    arrays.token_ids[PROMPT_FIRST_ROW : PROMPT_FIRST_ROW + PROMPT_ROWS] = [9, 8, 7, 6, 5]
    return arrays


def sigmoid(values):
    return 1 / (1 + np.exp(-np.asarray(values)))


def changed(before, after):
    """Indices along the first axis at which two arrays differ."""
    different = (before != after).reshape(before.shape[0], -1).any(axis=1)
    return set(np.flatnonzero(different).tolist())


def test_a_mixed_launch_writes_its_own_rows_and_nothing_else(shape, parameters):
    before = random_state(shape)
    after, signals = recurrent(shape, "xla", parameters, before, mixed_arrays(shape))
    assert changed(before.hidden, after.hidden) == {6, 1, 4}
    assert changed(before.prompt_hidden, after.prompt_hidden) == {2}
    assert changed(before.prompt_hidden[2], after.prompt_hidden[2]) == set(range(PROMPT_ROWS))
    assert changed(before.last_token, after.last_token) == set()
    written = {
        block + layer * shape.num_blocks for block in (10, 12, 13, 20, 21) for layer in range(3)
    }
    for pool in ("key_pool", "value_pool"):
        assert changed(getattr(before, pool), getattr(after, pool)) == written
    # Positions 14 and 15 lie in block 20, 16 to 18 in block 21; all others keep their noise.
    block = (before.key_pool[20] != after.key_pool[20]).any(axis=(0, 2))
    assert block.tolist() == [False] * 14 + [True] * 2
    assert signals.shape == (NUM_SLOTS,)


def test_the_gate_runs_on_decode_rows_only_and_by_each_rows_own_mode(shape, parameters):
    before = random_state(shape)
    after, signals = recurrent(shape, "xla", parameters, before, mixed_arrays(shape))
    assert changed(before.survival, after.survival) == {6}, "only Ouro's row has a product"
    rows = after.hidden[[6, 1]]
    gate = sigmoid(gate_logits(parameters, rows))[0]
    score = sigmoid(rows[1] @ np.asarray(parameters.lookahead.random))
    np.testing.assert_allclose(signals[:2], [gate, score], atol=1e-6)
    assert (np.asarray(signals[2:]) == 0).all()
    np.testing.assert_allclose(after.survival[6], 1 - gate, atol=1e-6)


def test_a_recorded_gate_is_its_sigmoid_and_leaves_every_product_alone(shape, parameters):
    before, arrays = random_state(shape), mixed_arrays(shape)
    gates = arrays.decode_gates.copy()
    gates[:3] = GATE_RECORDED
    after, signals = recurrent(
        shape, "xla", parameters, before, replace(arrays, decode_gates=gates)
    )
    assert changed(before.survival, after.survival) == set()
    logits = gate_logits(parameters, after.hidden[[6, 1, 4]])
    np.testing.assert_allclose(signals[:3], sigmoid(logits), atol=1e-6)
    assert (np.asarray(signals[3:]) == 0).all()


def test_a_launch_without_gates_leaves_every_product_alone(shape, parameters):
    before = random_state(shape)
    after, signals = recurrent(shape, "xla", parameters, before, mixed_arrays(shape, runs_gate=0))
    assert changed(before.survival, after.survival) == set()
    assert (np.asarray(signals) == 0).all()


def test_the_last_row_of_a_finished_item_becomes_its_requests_hidden_row(shape, parameters):
    before = random_state(shape)
    arrays = mixed_arrays(shape, depth_of_prompt=3, finish_slot=0)
    after, _ = recurrent(shape, "xla", parameters, before, arrays)
    assert changed(before.hidden, after.hidden) == {6, 1, 4, 0}
    np.testing.assert_array_equal(after.hidden[0], after.prompt_hidden[2, PROMPT_ROWS - 1])


def test_decode_rows_do_not_depend_on_the_prompt_rows_beside_them(shape, parameters):
    arrays = mixed_arrays(shape)
    alone = jax.tree.map(lambda array: array, arrays)
    alone = type(arrays)(
        **{
            field.name: getattr(arrays, field.name)
            for field in fields(arrays)
            if field.name != "prompts"
        },
        prompts=jax.tree.map(np.zeros_like, arrays.prompts),
    )
    state = random_state(shape)
    beside, beside_signals = recurrent(shape, "xla", parameters, state, arrays)
    without, signals = recurrent(shape, "xla", parameters, state, alone)
    np.testing.assert_array_equal(beside_signals, signals)
    for slot in (6, 1, 4):
        np.testing.assert_array_equal(beside.hidden[slot], without.hidden[slot])


def test_chunks_of_a_prompt_at_successive_depths_may_share_a_launch(shape, parameters):
    """The first runs depth 1 while the second runs depth 0, in planes of their own."""
    shape = replace(shape, max_window=2)
    before = random_state(shape)

    def arrays_of(*chunks):
        layout = recurrent_layout(shape, ROWS)
        arrays = layout.host_views(np.zeros(layout.size, np.int32))
        arrays.decode_slots[:] = NUM_SLOTS
        arrays.prompts.finish_slots[:] = NUM_SLOTS
        row = 0
        for index, (place, position, count, is_embedded, block) in enumerate(chunks):
            arrays.prompts.places[index] = place
            arrays.prompts.first_positions[index] = position
            arrays.prompts.first_rows[index] = row
            arrays.prompts.num_rows[index] = count
            arrays.prompts.is_embedded[index] = is_embedded
            arrays.prompt_tables[index, 0] = block
            arrays.token_ids[row : row + count] = range(position, position + count)
            row += count
        return arrays

    first, second = (2, 0, 5, 1, 20), (2 * NUM_SLOTS - 1, 5, 4, 0, 22)
    together, _ = recurrent(shape, "xla", parameters, before, arrays_of(first, second))
    assert changed(before.prompt_hidden, together.prompt_hidden) == {2, 2 * NUM_SLOTS - 1}
    apart = before
    for chunk in (first, second):
        apart, _ = recurrent(shape, "xla", parameters, apart, arrays_of(chunk))
    for field in fields(before):
        np.testing.assert_allclose(
            getattr(together, field.name), getattr(apart, field.name), atol=2e-5
        )


def test_embedding_is_folded_into_the_first_pass_of_prompt_and_decode_rows(shape, parameters):
    """At depth 0 the rows kept in the state are not read: noise in them changes nothing."""
    arrays = mixed_arrays(shape, depth_of_prompt=0)
    state = random_state(shape)
    hidden = state.hidden.copy()
    hidden[6] = np.nan
    spoilt = type(state)(
        **{
            field.name: getattr(state, field.name)
            for field in fields(state)
            if field.name not in ("hidden", "prompt_hidden")
        },
        hidden=hidden,
        prompt_hidden=np.full_like(state.prompt_hidden, np.nan),
    )
    first, _ = recurrent(shape, "xla", parameters, state, arrays)
    second, _ = recurrent(shape, "xla", parameters, spoilt, arrays)
    np.testing.assert_array_equal(first.hidden[6], second.hidden[6])
    np.testing.assert_array_equal(
        first.prompt_hidden[2, :PROMPT_ROWS], second.prompt_hidden[2, :PROMPT_ROWS]
    )


def test_several_passes_in_one_launch_equal_one_launch_a_pass(shape, parameters):
    state = random_state(shape)
    layout = prefill_layout(shape, ROWS)
    arrays = layout.host_views(np.zeros(layout.size, np.int32))
    assert isinstance(arrays, PrefillArrays)
    single = mixed_arrays(shape, depth_of_prompt=0)
    arrays.num_passes[...] = 4
    arrays.token_ids[:] = np.asarray(single.token_ids)
    for field in fields(arrays.prompts):
        getattr(arrays.prompts, field.name)[:] = np.asarray(getattr(single.prompts, field.name))
    arrays.prompts.finish_slots[0] = 3
    for plane in range(4):
        arrays.prompt_tables[plane, 0, :2] = [20 + 2 * plane, 21 + 2 * plane]
    together, _ = prefill(shape, "xla", parameters, state, arrays)

    stepwise = state
    for plane in range(4):
        single = mixed_arrays(
            shape, runs_gate=0, depth_of_prompt=plane, finish_slot=3 if plane == 3 else NUM_SLOTS
        )
        single = type(single)(
            **{field.name: getattr(single, field.name) for field in fields(single)}
            | {
                "decode_slots": np.full((NUM_SLOTS,), NUM_SLOTS, np.int32),
                "prompt_tables": arrays.prompt_tables[plane],
            }
        )
        stepwise, _ = recurrent(shape, "xla", parameters, stepwise, single)
    # Two programs round differently, and four loops amplify: float32, as in test_reference.
    for field in fields(state):
        np.testing.assert_allclose(
            getattr(together, field.name), getattr(stepwise, field.name), atol=2e-5
        )


def test_a_coda_copies_the_skipped_planes_of_early_exits_only(shape, parameters):
    before = random_state(shape)
    layout = coda_layout(shape, 8)
    arrays = layout.host_views(np.zeros(layout.size, np.int32))
    arrays.slots[:] = NUM_SLOTS
    arrays.slots[:3] = [2, 5, 0]
    arrays.exit_loops[:3] = [1, 4, 3]
    arrays.offsets[:3] = [7, 8, 9]
    arrays.plane_blocks[:3] = [[30, 31, 32, 33], [34, 35, 36, 37], [38, 39, 40, 41]]
    arrays.sampling.top_k[:] = 512
    arrays.sampling.top_p[:] = 1
    after, results = coda(shape, parameters, before, arrays)
    assert changed(before.last_token, after.last_token) == {2, 5, 0}
    assert changed(before.hidden, after.hidden) == set()
    for name in ("key_pool", "value_pool"):
        old, new = getattr(before, name), getattr(after, name)
        for layer in range(3):
            first = layer * shape.num_blocks
            for source, targets, offset in ((30, (31, 32, 33), 7), (40, (41,), 9)):
                for target in targets:
                    np.testing.assert_array_equal(
                        new[first + target, :, offset], old[first + source, :, offset]
                    )
        written = {b + layer * shape.num_blocks for b in (31, 32, 33, 41) for layer in range(3)}
        assert changed(old, new) == written
    logits = head_logits(parameters.model, before.hidden[[2, 5, 0]])
    assert results[0, :3].tolist() == np.asarray(logits.argmax(-1)).tolist()
    assert (np.asarray(results[2]) == 1).all()
    assert results.shape == (3 + 2 * MAX_LOGPROBS, 8)
    assert not np.asarray(results[3:]).any(), "no row asks for alternatives"


def test_float32_means_float32_in_every_product(shape, parameters):
    """A GPU's default for float32 is TF32, which no CPU test would notice."""
    layout = coda_layout(shape, 8)
    for step, arrays in (
        (partial(recurrent_step, shape, "xla"), mixed_arrays(shape)),
        (partial(coda_step, shape), layout.host_views(np.zeros(layout.size, np.int32))),
    ):
        text = jax.jit(step).lower(parameters, random_state(shape), arrays).as_text()
        dots = [line for line in text.splitlines() if "dot_general" in line]
        assert dots
        for line in dots:
            assert "precision = [HIGHEST, HIGHEST]" in line, line


def test_rows_are_mapped_to_items_by_their_ranges(shape):
    arrays = mixed_arrays(shape)
    row_map = jax.jit(RowMap.from_items, static_argnums=1)(arrays.prompts, ROWS)
    owned = list(range(PROMPT_FIRST_ROW, PROMPT_FIRST_ROW + PROMPT_ROWS))
    assert np.flatnonzero(np.asarray(row_map.is_prompt)).tolist() == owned
    assert np.asarray(row_map.offset)[owned].tolist() == list(range(PROMPT_ROWS))
    assert shape.num_blocks * 3 < NO_BLOCK
