"""Linear systems whose unknowns are not negative, solved for least squares or deviations."""

import numpy as np
from jaxtyping import Float64

Array = Float64[np.ndarray, "..."]
NUM_ROUNDS = 12
"""Of reweighted least squares."""
LEAST_SHARE = 0.05
"""Errors below this share of their median count alike, so that none gets all the weight."""


def non_negative_least_deviations(matrix: Array, target: Array) -> Array:
    """x >= 0 that about minimises the sum of |matrix x - target|: medians instead of means.

    Least squares by rounds, weighted by 1 / error of the round before.

    Args:
        matrix: [samples, columns]; columns of zeros get 0.
        target: [samples].
    """
    solution = non_negative_least_squares(matrix, target)
    for _ in range(NUM_ROUNDS):
        errors = np.abs(matrix @ solution - target)
        least = max(LEAST_SHARE * float(np.median(errors)), 1e-300)
        weights = 1 / np.sqrt(np.maximum(errors, least) / least)
        solution = non_negative_least_squares(matrix * weights[:, None], target * weights)
    return solution


def non_negative_least_squares(matrix: Array, target: Array) -> Array:
    """x >= 0 that minimises |matrix x - target|: the active-set method of Lawson and Hanson.

    Args:
        matrix: [samples, columns]; columns of zeros get 0.
        target: [samples].
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    scaled = matrix / scale
    solution = np.zeros(matrix.shape[1])
    is_free = np.zeros(matrix.shape[1], bool)
    tolerance = 1e-10 * max(float(np.abs(scaled.T @ target).max(initial=0.0)), 1e-300)
    for _ in range(3 * matrix.shape[1]):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[is_free] = -np.inf
        if gradient.max(initial=-np.inf) <= tolerance:
            break
        is_free[int(gradient.argmax())] = True
        while is_free.any():
            trial = np.zeros_like(solution)
            trial[is_free] = np.linalg.lstsq(scaled[:, is_free], target, rcond=None)[0]
            if trial[is_free].min() > 0:
                solution = trial
                break
            # As far towards the trial as nothing turns negative; what is 0 then stays there.
            falls = is_free & (trial <= 0)
            steps = solution[falls] / np.maximum(solution[falls] - trial[falls], 1e-300)
            solution = solution + float(steps.min()) * (trial - solution)
            is_free &= solution > 1e-15
            solution[~is_free] = 0.0
    return solution / scale
