"""The three losses against sums written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped.training.objectives.gate_objective import continue_targets, gate_loss
from looped.training.objectives.lookahead_objective import exit_cdf, lookahead_loss
from looped.training.objectives.objective import (
    cross_entropy,
    expected_loss,
    log_exit_probabilities,
)

# One program each, instead of one for every operation and shape.
expected_loss = jax.jit(expected_loss, static_argnums=2)
gate_loss = jax.jit(gate_loss, static_argnames=("slope", "margin"))
continue_targets = jax.jit(continue_targets, static_argnames=("slope", "margin"))
lookahead_loss, cross_entropy = jax.jit(lookahead_loss), jax.jit(cross_entropy)
log_exit_probabilities, exit_cdf = jax.jit(log_exit_probabilities), jax.jit(exit_cdf)

RNG = np.random.default_rng(0)
GATES = RNG.normal(size=(4, 5)).astype(np.float32)
LOSSES = RNG.gamma(1.0, size=(4, 5)).astype(np.float32)
# Float32 sums of a handful of numbers of about 1.
CLOSE = {"rtol": 0, "atol": 2e-6}


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def exit_probabilities(gates):
    survival, probabilities = 1.0, []
    for hazard in sigmoid(gates[:-1]):
        probabilities.append(survival * hazard)
        survival = survival * (1 - hazard)
    return np.stack([*probabilities, survival])


def test_exit_probabilities_sum_to_one_and_the_last_loop_takes_the_rest():
    log_p = np.asarray(log_exit_probabilities(jnp.asarray(GATES)))
    np.testing.assert_allclose(np.exp(log_p), exit_probabilities(GATES), **CLOSE)
    np.testing.assert_allclose(np.exp(log_p).sum(axis=0), 1.0, **CLOSE)


def test_hopeless_hazards_give_no_infinities():
    gates = jnp.asarray([[-200.0, 200.0], [300.0, -300.0], [0.0, 0.0]])
    gradient = jax.jit(jax.grad(lambda g: expected_loss(np.ones((3, 2)), g, 0.1).sum()))(gates)
    assert np.isfinite(np.asarray(gradient)).all()
    assert np.isfinite(np.asarray(expected_loss(jnp.ones((3, 2)), gates, 0.1))).all()


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_expected_loss_is_the_mean_over_exits_less_the_entropy(beta):
    p = exit_probabilities(GATES)
    expected = (p * LOSSES).sum(axis=0) + beta * (p * np.log(p)).sum(axis=0)
    got = expected_loss(jnp.asarray(LOSSES), jnp.asarray(GATES), beta)
    np.testing.assert_allclose(np.asarray(got), expected, **CLOSE)


def test_cross_entropy_is_the_negative_log_probability_of_the_target():
    logits = RNG.normal(size=(6, 11)).astype(np.float32)
    targets = np.asarray([0, 10, 3, 3, 7, 1])
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    got = cross_entropy(jnp.asarray(logits), jnp.asarray(targets))
    np.testing.assert_allclose(np.asarray(got), -np.log(p[np.arange(6), targets]), **CLOSE)


def test_going_on_is_worth_what_the_best_later_loop_gains():
    expected = np.empty((3, 5))
    for loop in range(3):
        for token in range(5):
            gain = max(0.0, LOSSES[loop, token] - min(LOSSES[loop + 1 :, token]))
            expected[loop, token] = sigmoid(5.0 * (gain - 0.2))
    got = continue_targets(jnp.asarray(LOSSES), slope=5.0, margin=0.2)
    np.testing.assert_allclose(np.asarray(got), expected, **CLOSE)


def test_the_gates_loss_is_the_cross_entropy_of_leaving():
    goes_on = np.asarray(continue_targets(jnp.asarray(LOSSES), slope=5.0, margin=0.2))
    hazards = sigmoid(GATES[:-1])
    entropy = -((1 - goes_on) * np.log(hazards) + goes_on * np.log(1 - hazards))
    got = gate_loss(jnp.asarray(GATES), jnp.asarray(LOSSES), slope=5.0, margin=0.2)
    np.testing.assert_allclose(np.asarray(got), entropy.mean(axis=0), **CLOSE)


def test_the_second_stage_has_no_gradient_but_for_the_gates_before_the_last():
    def loss(gates, losses):
        return gate_loss(gates, losses, slope=5.0, margin=0.2).sum()

    gates, losses = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(GATES), jnp.asarray(LOSSES))
    assert not np.asarray(losses).any()
    assert np.asarray(gates)[:-1].all()
    assert not np.asarray(gates)[-1].any()


def test_the_lookahead_loss_is_cross_entropy_and_the_error_of_the_cdf():
    students, teachers = GATES[:2], GATES[2:]
    s, t = sigmoid(students), sigmoid(teachers)
    entropy = -(t * np.log(s) + (1 - t) * np.log(1 - s)).mean(axis=0)
    cdfs = [1 - np.cumprod(1 - hazards, axis=0) for hazards in (s, t)]
    got = lookahead_loss(jnp.asarray(students), jnp.asarray(teachers))
    np.testing.assert_allclose(np.asarray(got[0]), entropy, **CLOSE)
    np.testing.assert_allclose(np.asarray(got[1]), abs(cdfs[0] - cdfs[1]).mean(axis=0), **CLOSE)
    np.testing.assert_allclose(np.asarray(exit_cdf(jnp.asarray(teachers))), cdfs[1], **CLOSE)


def test_a_student_that_says_what_the_teacher_says_has_no_cdf_error_and_teaches_nothing():
    logits = GATES[:2]
    assert not np.asarray(lookahead_loss(logits, logits)[1]).any()
    gradient = jax.jit(jax.grad(lambda t: sum(lookahead_loss(logits, t)).sum()))(logits + 1)
    assert not np.asarray(gradient).any()
