"""A gate that looks one loop ahead: a student learns what the model's own gate will say.

The student's hazard after loop r is sigmoid(w . h_r + b), with h_r the normed row. It is held
against the teacher's hazard after loop r + 1, for r = 1 to P-2: binary cross-entropy, plus the mean
of |CDF_s - CDF_t|, where CDF_r = 1 - prod_{j <= r} (1 - hazard_j) over the same loops.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .gate_objective import binary_cross_entropy


def lookahead_loss(
    students: Float[Array, "R T"], teachers: Float[Array, "R T"]
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """Cross-entropy and CDF error per token, each the mean over loops.

    Args:
        students: logits after loops 1 to P-2.
        teachers: the gate's logits after loops 2 to P-1; no gradient.
    """
    teachers = jax.lax.stop_gradient(teachers)
    entropy = binary_cross_entropy(students, jax.nn.sigmoid(teachers))
    errors = jnp.abs(exit_cdf(students) - exit_cdf(teachers))
    return jnp.mean(entropy, axis=0), jnp.mean(errors, axis=0)


def exit_cdf(logits: Float[Array, "R T"]) -> Float[Array, "R T"]:
    """1 - prod_{j <= r} (1 - sigmoid(logit_j))."""
    return 1.0 - jnp.exp(jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=0))
