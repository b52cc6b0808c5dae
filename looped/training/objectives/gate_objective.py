"""Second stage: the gate learns when another loop still lowers the loss.

After the second stage of "Scaling Latent Reasoning via Looped Language Models"
(https://arxiv.org/abs/2510.25741), and it differs from the paper, which compares adjacent
loops: here the best of all later loops counts, so that a token which needs two more waits for them.

With L_t a token's loss after loop t and g_t = max(0, L_t - min_{s > t} L_s) what later loops still
bring, the token is to go on with probability c_t = sigmoid(slope * (g_t - margin)). The loss is
the binary cross-entropy of the hazard lambda_t against 1 - c_t, over loops 1 to P-1. Losses are
those of every token at every loop: none leaves early here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def continue_targets(
    losses: Float[Array, "P T"], *, slope: float, margin: float
) -> Float[Array, "P-1 T"]:
    """c_t for loops 1 to P-1.

    Args:
        losses: after every loop, in nats.
        slope: how sharp the target is, per nat.
        margin: nats that are worth one half.
    """
    best_later = jnp.flip(jax.lax.cummin(jnp.flip(losses, 0), axis=0), 0)[1:]
    gains = jnp.maximum(losses[:-1] - best_later, 0.0)
    return jax.nn.sigmoid(slope * (gains - margin))


def gate_loss(
    gates: Float[Array, "P T"], losses: Float[Array, "P T"], *, slope: float, margin: float
) -> Float[Array, " T"]:
    """Binary cross-entropy per token, the mean over loops 1 to P-1; no gradient for the losses."""
    goes_on = continue_targets(jax.lax.stop_gradient(losses), slope=slope, margin=margin)
    return jnp.mean(binary_cross_entropy(gates[:-1], 1.0 - goes_on), axis=0)


def binary_cross_entropy(
    logits: Float[Array, "..."], targets: Float[Array, "..."]
) -> Float[Array, "..."]:
    """-(q log sigmoid(x) + (1 - q) log sigmoid(-x)) for targets q in 0 to 1."""
    return -(targets * jax.nn.log_sigmoid(logits) + (1 - targets) * jax.nn.log_sigmoid(-logits))
