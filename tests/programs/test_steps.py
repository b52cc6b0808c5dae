"""One mixed launch, looked at row by row: what it writes, and above all what it leaves alone."""

from dataclasses import fields, replace
from functools import partial

import jax
import numpy as np
import pytest
from engines import loaded_model, make_engine
from step_states import changed, field_of, random_state, with_rows

from looped.pallas_kernels import NO_BLOCK
from looped.programs.head import head as head_step
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.programs.prefill import PrefillArrays, prefill_layout
from looped.programs.prefill import prefill as prefill_step
from looped.programs.prompt_arrays import RowMap
from looped.programs.recurrent import recurrent as recurrent_step
from looped.programs.recurrent import recurrent_layout
from looped.programs.sampling.forms import CONDITIONAL


def on_host(step, num_static):
    """The step as one program for all tests here, and what it returns in NumPy."""
    jitted = jax.jit(step, static_argnums=tuple(range(num_static)))
    return lambda *arguments: jax.tree.map(np.asarray, jitted(*arguments))


prefill, recurrent = on_host(prefill_step, 2), on_host(recurrent_step, 2)
gate_logits = jax.jit(lambda parameters, rows: parameters.model.gate_logits(rows))

ROWS = 16
NUM_SLOTS = 8
PROMPT_FIRST_ROW, PROMPT_ROWS = 3, 5
DECODE_SLOTS, PROMPT_SLOT = (6, 1, 4), 3
LIVE = {
    6: {"position": 4, "threshold": 0.9},
    1: {"position": 17, "depth": 2, "exit_mode": 2, "threshold": 0.9, "survival": 0.25},
    4: {"position": 9, "depth": 3, "survival": 0.5},
}


@pytest.fixture(scope="module")
def shape(request):
    return make_engine(request.getfixturevalue("tiny_folder")).runner.executables.shape


@pytest.fixture(scope="module")
def parameters(request):
    model = loaded_model(request.getfixturevalue("tiny_folder")).model
    return Parameters(model=model, lookahead=LookaheadHeads.create(model.config, seed=0))


@pytest.fixture
def state(shape):
    return with_rows(random_state(shape), LIVE)


def mixed_arrays(shape, *, depth_of_prompt=1, finish_slot=NUM_SLOTS, decode_slots=DECODE_SLOTS):
    """Decode rows in slots 6, 1 and 4, then one prompt item of five rows in place 2."""
    layout = recurrent_layout(shape, ROWS)
    arrays = layout.host_views(np.zeros(layout.size, np.int32))
    arrays.decode_slots[:] = arrays.head_slots[:] = NUM_SLOTS
    arrays.decode_slots[: len(decode_slots)] = decode_slots
    arrays.head_slots[:1] = 4
    arrays.prompts.finish_slots[:] = NUM_SLOTS
    arrays.prompts.places[0] = 2
    arrays.prompts.slots[0] = PROMPT_SLOT
    arrays.prompts.depths[0] = depth_of_prompt
    arrays.prompts.first_positions[0] = 14
    arrays.prompts.first_rows[0] = PROMPT_FIRST_ROW
    arrays.prompts.num_rows[0] = PROMPT_ROWS
    arrays.prompts.finish_slots[0] = finish_slot
    arrays.token_ids[PROMPT_FIRST_ROW : PROMPT_FIRST_ROW + PROMPT_ROWS] = [9, 8, 7, 6, 5]
    return arrays


def block_of(slot, plane, position):
    """As `random_state` numbers them."""
    return 40 * plane + 5 * slot + position // 16


def sigmoid(values):
    return 1 / (1 + np.exp(-np.asarray(values)))


def test_a_mixed_launch_writes_its_own_rows_and_nothing_else(shape, parameters, state):
    after, ticket = recurrent(shape, "xla", parameters, state, mixed_arrays(shape))
    assert changed(state.hidden, after.hidden) == {6, 1, 4}
    assert changed(state.prompt_hidden, after.prompt_hidden) == {2}
    assert changed(state.prompt_hidden[2], after.prompt_hidden[2]) == set(range(PROMPT_ROWS))
    assert changed(state.progress, after.progress) == changed(state.gates, after.gates) == {6, 1, 4}
    for name in ("options", "block_tables", "traces", "token_marks", "logit_bias"):
        assert changed(getattr(state, name), getattr(after, name)) == set(), name
    blocks = [block_of(6, 0, 4), block_of(1, 2, 17), block_of(4, 3, 9)]
    blocks += [block_of(PROMPT_SLOT, 1, position) for position in (14, 16)]
    written = {block + layer * shape.num_blocks for block in blocks for layer in range(3)}
    for pool in ("key_pool", "value_pool"):
        assert changed(getattr(state, pool), getattr(after, pool)) == written
    # Positions 14 and 15 lie in the first of the prompt's blocks; all others keep their noise.
    first = block_of(PROMPT_SLOT, 1, 14)
    block = (state.key_pool[first] != after.key_pool[first]).any(axis=(0, 2))
    assert block.tolist() == [False] * 14 + [True] * 2
    assert after.head_slots.tolist() == [4] + [NUM_SLOTS] * 7
    assert ticket.shape == (1,)


def test_gates_and_products_are_those_of_decode_rows_only(shape, parameters, state):
    after, _ = recurrent(shape, "xla", parameters, state, mixed_arrays(shape))
    gates = sigmoid(gate_logits(parameters, after.hidden[list(DECODE_SLOTS)]))
    for gate, slot, depth, before in zip(
        gates, DECODE_SLOTS, (0, 2, 3), (1, 0.25, 0.5), strict=True
    ):
        np.testing.assert_allclose(after.gates[slot, depth], gate, atol=1e-6)
        others = np.delete(after.gates[slot], depth)
        np.testing.assert_array_equal(others, np.delete(state.gates[slot], depth))
        survival = field_of(after, "survival")[slot]
        np.testing.assert_allclose(survival, before * (1 - gate), atol=1e-6)
        assert field_of(after, "depth")[slot] == depth + 1
    assert field_of(after, "is_leaving")[list(DECODE_SLOTS)].tolist() == [0, 0, 1], "loop 4 of 4"


@pytest.mark.parametrize("ended", [(6,), (1, 4), DECODE_SLOTS])
def test_rows_of_requests_that_have_ended_write_nothing(shape, parameters, state, ended):
    """They ride until the host learns of it, and their blocks may be another's by then."""
    masked = with_rows(state, {slot: LIVE[slot] | {"is_done": 1} for slot in ended})
    alive = [slot for slot in DECODE_SLOTS if slot not in ended]
    arrays = mixed_arrays(shape)
    after, _ = recurrent(shape, "xla", parameters, masked, arrays)
    without, _ = recurrent(shape, "xla", parameters, state, arrays)
    for name in ("hidden", "progress", "gates"):
        assert changed(getattr(masked, name), getattr(after, name)) == set(alive)
        for slot in alive:
            ours, theirs = getattr(after, name)[slot], getattr(without, name)[slot]
            np.testing.assert_array_equal(ours, theirs)
    own = {
        slot: block_of(slot, LIVE[slot].get("depth", 0), LIVE[slot]["position"]) for slot in ended
    }
    for block in own.values():
        for layer in range(3):
            place = block + layer * shape.num_blocks
            np.testing.assert_array_equal(after.key_pool[place], state.key_pool[place])


def test_nothing_of_a_request_that_has_ended_is_read_or_reaches_another(shape, parameters, state):
    """NaN in all that is its own stays where it is, and goes nowhere else."""
    arrays, ended = mixed_arrays(shape), 1
    own = [layer * shape.num_blocks + block for layer in range(3) for block in _blocks_of(ended)]
    spoilt = with_rows(state, {ended: LIVE[ended] | {"is_done": 1}})
    pools = {name: getattr(state, name).copy() for name in ("key_pool", "value_pool")}
    hidden = state.hidden.copy()
    hidden[ended] = np.nan
    for pool in pools.values():
        pool[own] = np.nan
    spoilt = replace(spoilt, hidden=hidden, **pools)
    after, _ = recurrent(shape, "xla", parameters, spoilt, arrays)
    without, _ = recurrent(shape, "xla", parameters, state, arrays)
    for name in pools:
        old, new = getattr(spoilt, name), getattr(after, name)
        np.testing.assert_array_equal(np.isnan(new), np.isnan(old))
    np.testing.assert_array_equal(np.isnan(after.hidden), np.isnan(hidden))
    np.testing.assert_array_equal(after.prompt_hidden, without.prompt_hidden)
    for slot in set(DECODE_SLOTS) - {ended}:
        for name in ("hidden", "progress", "gates"):
            ours, theirs = getattr(after, name)[slot], getattr(without, name)[slot]
            np.testing.assert_array_equal(ours, theirs)


def _blocks_of(slot):
    """All that `random_state` gives it, in every plane."""
    return [40 * plane + 5 * slot + index for plane in range(4) for index in range(5)]


def test_the_last_row_of_a_finished_prompt_begins_its_requests_row(shape, parameters, state):
    arrays = mixed_arrays(shape, depth_of_prompt=3, finish_slot=0)
    after, _ = recurrent(shape, "xla", parameters, state, arrays)
    assert changed(state.hidden, after.hidden) == {6, 1, 4, 0}
    np.testing.assert_array_equal(after.hidden[0], after.prompt_hidden[2, PROMPT_ROWS - 1])
    assert field_of(after, "is_leaving")[0] == 1
    assert field_of(after, "depth")[0] == 4


def test_decode_rows_do_not_depend_on_the_prompt_rows_beside_them(shape, parameters, state):
    arrays = mixed_arrays(shape)
    alone = replace(arrays, prompts=jax.tree.map(np.zeros_like, arrays.prompts))
    alone.prompts.finish_slots[:] = NUM_SLOTS
    beside, _ = recurrent(shape, "xla", parameters, state, arrays)
    without, _ = recurrent(shape, "xla", parameters, state, alone)
    np.testing.assert_array_equal(beside.progress, without.progress)
    np.testing.assert_array_equal(beside.hidden, without.hidden)


def test_chunks_of_a_prompt_at_successive_depths_may_share_a_launch(shape, parameters):
    """The first runs depth 1 while the second runs depth 0, in planes of their own."""
    shape = replace(shape, max_window=2)
    before = random_state(shape)

    def arrays_of(*chunks):
        layout = recurrent_layout(shape, ROWS)
        arrays = layout.host_views(np.zeros(layout.size, np.int32))
        arrays.decode_slots[:] = arrays.head_slots[:] = NUM_SLOTS
        arrays.prompts.finish_slots[:] = NUM_SLOTS
        row = 0
        for index, (place, position, count, depth) in enumerate(chunks):
            arrays.prompts.places[index] = place
            arrays.prompts.slots[index] = PROMPT_SLOT
            arrays.prompts.depths[index] = depth
            arrays.prompts.first_positions[index] = position
            arrays.prompts.first_rows[index] = row
            arrays.prompts.num_rows[index] = count
            arrays.token_ids[row : row + count] = range(position, position + count)
            row += count
        return arrays

    first, second = (2, 0, 5, 1), (2 * NUM_SLOTS - 1, 5, 4, 0)
    together, _ = recurrent(shape, "xla", parameters, before, arrays_of(first, second))
    assert changed(before.prompt_hidden, together.prompt_hidden) == {2, 2 * NUM_SLOTS - 1}
    apart = before
    for chunk in (first, second):
        apart, _ = recurrent(shape, "xla", parameters, apart, arrays_of(chunk))
    for field in fields(before):
        np.testing.assert_allclose(
            getattr(together, field.name), getattr(apart, field.name), atol=2e-5
        )


def test_embedding_is_folded_into_the_first_pass_of_prompt_and_decode_rows(
    shape, parameters, state
):
    """At depth 0 the rows kept in the state are not read: noise in them changes nothing."""
    arrays = mixed_arrays(shape, depth_of_prompt=0)
    hidden = state.hidden.copy()
    hidden[6] = np.nan
    noise = np.full_like(state.prompt_hidden, np.nan)
    spoilt = replace(state, hidden=hidden, prompt_hidden=noise)
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
    single = mixed_arrays(shape, depth_of_prompt=0, finish_slot=PROMPT_SLOT)
    arrays.token_ids[:] = np.asarray(single.token_ids)
    arrays.head_slots[:] = NUM_SLOTS
    for field in fields(arrays.prompts):
        getattr(arrays.prompts, field.name)[:] = np.asarray(getattr(single.prompts, field.name))
    together, _ = prefill(shape, "xla", parameters, state, arrays)

    stepwise = state
    for plane in range(4):
        finish_slot = PROMPT_SLOT if plane == 3 else NUM_SLOTS
        single = mixed_arrays(
            shape, depth_of_prompt=plane, finish_slot=finish_slot, decode_slots=()
        )
        single.head_slots[:] = NUM_SLOTS
        stepwise, _ = recurrent(shape, "xla", parameters, stepwise, single)
    # Two programs round differently, and four loops amplify: float32, as in test_reference.
    for field in fields(state):
        np.testing.assert_allclose(
            getattr(together, field.name), getattr(stepwise, field.name), atol=2e-5
        )


def test_float32_means_float32_in_every_product(shape, parameters, state):
    """A GPU's default for float32 is TF32, which no CPU test would notice."""
    for step, arrays in (
        (partial(recurrent_step, shape, "xla"), (mixed_arrays(shape),)),
        (partial(head_step, shape, CONDITIONAL, 8), ()),
    ):
        text = jax.jit(step).lower(parameters, state, *arrays).as_text()
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
