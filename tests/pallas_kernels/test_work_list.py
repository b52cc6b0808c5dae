"""The work list of a prompt launch."""

from functools import partial

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.pallas_kernels.work_list import list_prompt_tiles, list_work

listed = jax.jit(list_work, static_argnums=1)

NUM_ROWS = 24
tiles_of = {
    count: jax.jit(
        partial(list_prompt_tiles, num_rows=NUM_ROWS, queries_per_row=count, tile_size=7)
    )
    for count in (1, 3)
}


@settings(max_examples=100, deadline=None)
@given(num_tiles=st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_the_work_list_names_each_tile_of_each_item_once(num_tiles):
    num_programs = 24
    items, first = map(np.asarray, listed(np.array(num_tiles, np.int32), num_programs))
    expected = [(item, tile) for item, count in enumerate(num_tiles) for tile in range(count)]
    programs = zip(items, np.arange(num_programs) - first, strict=True)
    assert [(int(item), int(tile)) for item, tile in programs if item >= 0] == expected
    assert all(item == -1 for item in items[len(expected) :])


@settings(max_examples=100, deadline=None)
@given(
    cuts=st.lists(st.integers(0, NUM_ROWS), min_size=3, max_size=3),
    queries_per_row=st.sampled_from([1, 3]),
)
def test_there_is_room_for_every_tile_of_items_that_fill_the_batch(cuts, queries_per_row):
    rows = np.diff([0, *sorted(cuts), NUM_ROWS]).astype(np.int32)
    items, first = map(np.asarray, tiles_of[queries_per_row](rows))
    expected = [
        (item, tile)
        for item, count in enumerate(rows)
        for tile in range(-(-int(count) * queries_per_row // 7))
    ]
    programs = zip(items, np.arange(len(items)) - first, strict=True)
    assert [(int(item), int(tile)) for item, tile in programs if item >= 0] == expected
