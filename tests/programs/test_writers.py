"""Rows of the request table: written whole at admission, grown without touching anything else."""

import jax
import numpy as np
import pytest
from engines import make_engine
from step_states import changed, field_of, random_state

from looped.device.request_table import NUM_STOP_IDS, RowOptions, read_rows
from looped.programs.exit_decisions import EXIT_MODES
from looped.programs.writers.due import DueWrites
from looped.programs.writers.grow import num_groups
from looped.programs.writers.registry import WRITERS
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions


@pytest.fixture
def engine(tiny_folder):
    """Nothing is compiled but the writers."""
    return make_engine(tiny_folder)


def written(shape, state, writes):
    for name, buffer in writes:
        writer = WRITERS[name]
        layout = writer.layout(shape)
        assert buffer.size == layout.size
        step = jax.jit(
            lambda state, packed, w=writer, own=layout: w.write(state, own.unpack(packed))
        )
        state = jax.tree.map(np.asarray, step(state, buffer))
    return state


def batch_of(engine, **requests):
    for name, (prompt, params) in requests.items():
        engine.add_request(name, prompt, params)
    return engine.scheduler.schedule()


def test_a_new_request_brings_its_whole_row_once(engine):
    shape = engine.runner.executables.shape
    params = SamplingParams(
        max_tokens=7,
        temperature=0.5,
        seed=2**33 + 5,
        logprobs=2,
        stop_token_ids=range(40, 50),
        exit=ExitOptions(trace=(4, 1, 3)),
    )
    batch = batch_of(engine, a=([9, 8, 7], params))
    due, (item,) = DueWrites(shape), batch.items
    writes = due.before(batch)
    assert [name for name, _ in writes] == ["admit"]
    before = random_state(shape)
    after, slot = written(shape, before, writes), item.request.slot
    for name in ("progress", "options", "block_tables", "traces"):
        assert changed(getattr(before, name), getattr(after, name)) == {slot}, name
    for name in ("key_pool", "hidden", "gates", "token_marks", "logit_bias", "head_slots"):
        assert changed(getattr(before, name), getattr(after, name)) == set(), name
    assert field_of(after, "position")[slot] == 2
    assert not any(field_of(after, name)[slot] for name in ("depth", "num_outputs", "is_done"))
    options = read_rows(RowOptions, jax.numpy.asarray(after.options), np.asarray([slot]))
    assert EXIT_MODES[int(options.exit_mode[0])] is ExitMode.TRACE
    assert options.stop_ids[0].tolist() == list(range(40, 40 + NUM_STOP_IDS)), "of ten, eight"
    assert options.seed[0].tolist() == [2, 5]
    assert (int(options.max_tokens[0]), int(options.trace_length[0])) == (7, 3)
    assert bool(options.wants_top[0])
    assert after.traces[slot, :3].tolist() == [4, 1, 3]
    for plane, table in enumerate(item.request.block_tables):
        assert after.block_tables[slot, plane, : len(table)].tolist() == table
    assert due.before(batch) == [], "it is there"


def test_edits_come_in_an_upload_of_their_own(engine):
    params = SamplingParams(max_tokens=2, logit_bias={3: 2.0}, presence_penalty=1.0)
    batch = batch_of(engine, a=([9, 8, 9], params), b=([1], SamplingParams(max_tokens=2)))
    shape = engine.runner.executables.shape
    writes = DueWrites(shape).before(batch)
    assert [name for name, _ in writes] == ["admit", "edit", "admit"]
    before = random_state(shape)
    after, slot = written(shape, before, writes), batch.items[0].request.slot
    for name in ("token_marks", "logit_bias"):
        assert changed(getattr(before, name), getattr(after, name)) == {slot}
    assert np.flatnonzero(after.logit_bias[slot]).tolist() == [3]
    assert {8, 9} <= set(np.flatnonzero(after.token_marks[slot]).tolist())


def test_blocks_that_were_claimed_later_are_added_and_nothing_else_is_touched(tiny_folder):
    engine = make_engine(tiny_folder, incremental_kv=True, block_size=4, num_blocks=768)
    shape = engine.runner.executables.shape
    due, first = (
        DueWrites(shape),
        batch_of(engine, a=(list(range(40)), SamplingParams(max_tokens=9))),
    )
    state = written(shape, random_state(shape), due.before(first))
    request, known = first.items[0].request, len(first.items[0].request.block_tables[0])
    engine.scheduler.resources.blocks.grow_tables(request, request.capacity)
    writes = due.before(first)
    assert [name for name, _ in writes] == ["grow"]
    after = written(shape, state, writes)
    assert changed(state.block_tables, after.block_tables) <= {request.slot}
    for name in ("progress", "options", "traces", "gates", "hidden"):
        assert changed(getattr(state, name), getattr(after, name)) == set()
    for plane, table in enumerate(request.block_tables):
        assert len(table) > known
        assert after.block_tables[request.slot, plane, : len(table)].tolist() == table


def test_more_blocks_than_one_upload_holds_take_several(tiny_folder):
    engine = make_engine(tiny_folder, incremental_kv=True, block_size=1, num_blocks=3072)
    shape = engine.runner.executables.shape
    due, first = DueWrites(shape), batch_of(engine, a=([1], SamplingParams(max_tokens=90)))
    state = written(shape, random_state(shape), due.before(first))
    request = first.items[0].request
    engine.scheduler.resources.blocks.grow_tables(request, request.capacity)
    writes = due.before(first)
    num_new = request.capacity - 1
    assert len(writes) == -(-num_new // num_groups(shape)) > 1
    after = written(shape, state, writes)
    for plane, table in enumerate(request.block_tables):
        assert after.block_tables[request.slot, plane, : len(table)].tolist() == table


def test_a_slot_that_is_used_again_gets_the_row_of_its_new_owner(engine):
    """Known by the object: the id may be the same."""
    shape = engine.runner.executables.shape
    due, params = DueWrites(shape), SamplingParams(max_tokens=2)
    first = batch_of(engine, a=([1, 2, 3], params))
    slot = first.items[0].request.slot
    state = written(shape, random_state(shape), due.before(first))
    engine.abort("a")
    engine.runner._due, second = due, batch_of(engine, a=([1, 2, 3, 4, 5], params))
    assert second.items[0].request.slot == slot
    after = written(shape, state, due.before(second))
    assert field_of(after, "position")[slot] == 4
