"""Linear systems whose unknowns are not negative."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.simulation.fitting.least_squares import (
    non_negative_least_deviations,
    non_negative_least_squares,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(0, 8))
def test_least_squares_without_negative_numbers_is_optimal(seed, num_columns, num_more):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((num_columns + num_more, num_columns))
    target = rng.standard_normal(num_columns + num_more)
    solution = non_negative_least_squares(matrix, target)
    assert solution.min() >= 0
    # Karush-Kuhn-Tucker: no column helps where it is 0, and none could where it is not.
    gradient = matrix.T @ (target - matrix @ solution)
    assert gradient.max() < 1e-7
    assert np.abs(gradient[solution > 1e-12]).max(initial=0) < 1e-6


def test_least_deviations_find_medians_where_a_few_samples_lie_far_off():
    rng = np.random.default_rng(0)
    matrix = rng.uniform(0, 2, (400, 3))
    truth = np.array([1.0, 0.0, 3.0])
    target = matrix @ truth
    target[::5] *= 4
    solution = non_negative_least_deviations(matrix, target)
    assert solution == pytest.approx(truth, abs=0.02)
    assert non_negative_least_squares(matrix, target) != pytest.approx(truth, abs=0.2)
