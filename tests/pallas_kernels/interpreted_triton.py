"""What is particular to the Triton kernels, in Triton's interpreter.

test_triton_interpreter.py runs this file, and the suite of all backends in test_backends.py, in a
process of its own: the kernels are decorated for the interpreter when they are imported. Only
float32 and float16, since the interpreter's products of bfloat16 are garbage.
"""

from dataclasses import replace

import numpy as np
import pytest
from attention_cases import Decode, PaddedShape, Prompt, bits, build_case
from attention_suite import INTERPRETED, InterpretedTriton

from looped.pallas_kernels.triton.tiles import TILES, tiles_for

each_form = pytest.mark.parametrize("target", INTERPRETED)


@each_form
def test_every_tile_configuration_is_interpreted(target):
    """By the random batches of test_backends.py. Warps and stages do not exist here."""
    shapes = [target.shape(name) for name in target.shapes]
    interpreted = {
        tiles_for(target.architecture, shape.query_dtype, shape.head_dim) for shape in shapes
    }
    assert interpreted == set(TILES.values())


@each_form
@pytest.mark.parametrize("group", [17, 24, 32])
def test_every_query_head_of_a_large_group_attends(target, group):
    """A decode tile has 16 queries; a larger group takes several tiles."""
    rng, num_kv_heads = np.random.default_rng(group), 2
    shape = PaddedShape(
        num_rows=12,
        max_num_seqs=3,
        num_heads=group * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        block_size=16,
        max_model_len=150,
    )
    decodes = [Decode(150), None, Decode(7)]
    target.check(build_case(rng, shape, decodes, [Prompt(30, 5)], at_end=True))


@each_form
@pytest.mark.parametrize("name", ["two rows", "float16"])
def test_a_row_of_more_keys_than_the_least_of_all_splits_is_cut_evenly(target, name):
    """By fewer splits than are shipped, which takes fewer keys."""
    shape, rng = target.small_shape(name), np.random.default_rng(1)
    shipped = tiles_for(target.architecture, shape.query_dtype, shape.head_dim)
    few = replace(target, tiles=replace(shipped, num_splits=2, min_split_keys=64))
    for length in (129, 150):
        few.check(build_case(rng, shape, [Decode(length), Decode(length - 1)], []))


@pytest.mark.parametrize("name", ["groups of 6", "float16"])
def test_a_row_keeps_its_bits_whatever_its_neighbours_are(name):
    """Alone; and in another place, among NaN queries and longer contexts."""
    target, rng = InterpretedTriton("triton"), np.random.default_rng(2)
    shape, mine, chunk = target.small_shape(name), Decode(77, seed=1), Prompt(50, 9, seed=2)
    alone = target.attend(build_case(rng, shape, [mine], [chunk]))
    crowd = build_case(rng, shape, [Decode(199), mine], [Prompt(170, 29), chunk], at_end=True)
    crowd.q[0] = np.nan
    crowd.q[2:-9] = np.nan
    out = target.attend(crowd)
    np.testing.assert_array_equal(bits(out[1]), bits(alone[0]))
    np.testing.assert_array_equal(bits(out[-9:]), bits(alone[1:10]))


def test_the_fused_form_keeps_every_bit_where_the_tiles_are_the_same():
    two, one = InterpretedTriton("triton"), InterpretedTriton("triton_fused")
    shape = two.small_shape("float16")
    case = build_case(np.random.default_rng(3), shape, [Decode(200), Decode(3)], [Prompt(30, 20)])
    np.testing.assert_array_equal(bits(one.attend(case)), bits(two.attend(case)))
