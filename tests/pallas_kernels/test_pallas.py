"""Every tile configuration of the Pallas kernels, in the interpreter against the float64 oracle.

That they lower for a GPU as well is held by test_lowering.py.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import build_case, random_mix
from attention_suite import SHAPES, Target

from looped.pallas_kernels.pallas import tiles
from looped.pallas_kernels.pallas.tiles import TILES


@pytest.mark.parametrize("architecture", TILES)
@pytest.mark.parametrize("name", ["groups of 4", "large blocks", "bfloat16", "wide bfloat16"])
def test_the_tiles_of_every_architecture_agree_with_the_oracle(architecture, name):
    shape, rng = SHAPES[name], np.random.default_rng(6)
    case = build_case(rng, shape, *random_mix(rng, shape))
    Target("pallas", architecture=architecture).check(case)


def test_every_tile_configuration_is_interpreted():
    """By the test before this one. Warps and stages do not exist in the interpreter."""
    interpreted = {
        tiles.tile_configuration(
            architecture, SHAPES[name].head_dim, jnp.dtype(SHAPES[name].pool_dtype)
        )
        for architecture in TILES
        for name in ("groups of 4", "large blocks", "bfloat16", "wide bfloat16")
    }
    assert interpreted == {row for table in TILES.values() for row in table}
