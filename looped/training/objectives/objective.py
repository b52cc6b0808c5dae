"""First stage: the expected loss over exit depths, with an entropy term.

As in "Scaling Latent Reasoning via Looped Language Models" (https://arxiv.org/abs/2510.25741).

With hazards lambda_t = sigmoid(gate after loop t), a token leaves after loop t with probability
p_t = lambda_t * prod_{j<t} (1 - lambda_j), and after loop P with all that is left. The loss is
sum_t p_t CE_t - beta * H(p): without the entropy, which pulls towards a uniform prior, the gate
would soon settle on one depth, and the others would learn nothing more.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def log_exit_probabilities(gates: Float[Array, "P T"]) -> Float[Array, "P T"]:
    """log p_t from the gate's logits; the last loop's logit is not looked at."""
    stay = jnp.cumsum(jax.nn.log_sigmoid(-gates[:-1]), axis=0)
    survived = jnp.concatenate([jnp.zeros_like(gates[:1]), stay])
    leave = jnp.concatenate([jax.nn.log_sigmoid(gates[:-1]), jnp.zeros_like(gates[:1])])
    return survived + leave


def cross_entropy(logits: Float[Array, "T V"], targets: Int[Array, " T"]) -> Float[Array, " T"]:
    """-log softmax(logits)[target] per token, in float32."""
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def expected_loss(
    losses: Float[Array, "P T"], gates: Float[Array, "P T"], beta: Float[Array, ""] | float
) -> Float[Array, " T"]:
    """sum_t p_t CE_t - beta * H(p) per token."""
    log_p = log_exit_probabilities(gates)
    return jnp.sum(jnp.exp(log_p) * (losses + beta * log_p), axis=0)
