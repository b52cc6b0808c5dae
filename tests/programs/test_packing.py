"""Arrays of launches in which one request has several prompt items."""

from dataclasses import replace

import numpy as np
import pytest
from engines import make_engine

from looped.programs.prefill import prefill_layout
from looped.programs.recurrent import RECURRENT, recurrent_layout
from looped.programs.registry import PROGRAMS
from looped.sampling_params import SamplingParams
from looped.sched import LaunchResult, wavefront_policy

PROMPT = list(range(100, 160))
ROWS = 32


@pytest.fixture
def engine(tiny_folder):
    """Nothing is compiled: no launch of it reaches the device."""
    return make_engine(tiny_folder, policy=wavefront_policy(), prefill_chunk_size=7)


def host_arrays(layout, buffer=None):
    return layout.host_views(np.zeros(layout.size, np.int32) if buffer is None else buffer)


def test_each_chunk_has_its_place_its_range_and_the_table_of_its_plane(engine):
    engine.add_request("a", PROMPT, SamplingParams(max_tokens=2))
    for _ in range(3):
        batch = engine.scheduler.schedule()
        engine.scheduler.apply(batch, LaunchResult())
    batch = engine.scheduler.schedule()
    assert [item.depth for item in batch.items] == [3, 2, 1, 0]
    shape, request = engine.runner.executables.shape, batch.items[0].request
    layout = recurrent_layout(shape, ROWS)
    arrays = host_arrays(layout, RECURRENT.packed(shape, batch, layout))
    prompts, unused = arrays.prompts, [0] * (ROWS - 4)
    assert (arrays.decode_slots == shape.max_num_seqs).all()
    assert prompts.first_positions.tolist() == [0, 7, 14, 21, *unused]
    assert prompts.first_rows.tolist() == [0, 7, 14, 21, *unused]
    assert prompts.num_rows.tolist() == [7, 7, 7, 7, *unused]
    assert prompts.depths[:4].tolist() == [3, 2, 1, 0]
    assert prompts.slots[:4].tolist() == [request.slot] * 4
    assert len(set(prompts.places[:4].tolist())) == 4
    assert arrays.token_ids.tolist() == [0] * 21 + PROMPT[21:28] + [0] * 4
    # Only the prompt's last chunk begins a row when it has run its last depth.
    assert prompts.finish_slots.tolist() == [shape.max_num_seqs] * ROWS


@pytest.mark.parametrize("num_rows", [2, 8, ROWS])
def test_only_prompt_items_of_a_single_pass_grow_with_the_window(engine, tiny_folder, num_rows):
    plain = make_engine(tiny_folder, prefill_chunk_size=7).runner.executables.shape
    shape, num_decode = engine.runner.executables.shape, min(num_rows, 8)
    for each, num_items in ((plain, num_decode), (shape, min(num_rows, 4 * 8))):
        arrays = host_arrays(recurrent_layout(each, num_rows))
        assert arrays.decode_slots.shape == (num_decode,)
        assert arrays.head_slots.shape == (num_decode,)
        assert arrays.prompts.places.shape == (num_items,)
    assert prefill_layout(shape, num_rows).size == prefill_layout(plain, num_rows).size


def test_an_upload_has_the_same_size_for_any_length_of_sequences_and_any_number_of_loops(engine):
    """Tables, options and depths lie on the device: a launch says of a row no more than its slot.
    Sizes of the state alone make an upload; nothing of a request does."""
    shape = engine.runner.executables.shape
    others = (
        replace(shape, max_model_len=64 * shape.max_model_len),
        replace(shape, config=replace(shape.config, num_loops=16)),
        replace(shape, num_blocks=7 * shape.num_blocks, block_size=2 * shape.block_size),
    )
    for program in PROGRAMS.values():
        size = program.layout(shape, ROWS).size
        assert [program.layout(other, ROWS).size for other in others] == [size] * len(others)
