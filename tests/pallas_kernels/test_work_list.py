"""The work list of a prompt launch."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.pallas_kernels.work_list import list_work

listed = jax.jit(list_work, static_argnums=1)


@settings(max_examples=100, deadline=None)
@given(num_tiles=st.lists(st.integers(0, 5), min_size=4, max_size=4))
def test_the_work_list_names_each_tile_of_each_item_once(num_tiles):
    num_programs = 24
    items, first = map(np.asarray, listed(np.array(num_tiles, np.int32), num_programs))
    expected = [(item, tile) for item, count in enumerate(num_tiles) for tile in range(count)]
    programs = zip(items, np.arange(num_programs) - first, strict=True)
    assert [(int(item), int(tile)) for item, tile in programs if item >= 0] == expected
    assert all(item == -1 for item in items[len(expected) :])
