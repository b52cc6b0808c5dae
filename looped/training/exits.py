"""Exits in training: a model learns to read what tokens that left early leave behind.

An engine keeps a token's last keys and values where it left, for all deeper loops of the tokens
after it. A model that has only ever seen every token at full depth loses its way over them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from looped.models import OuroModel

from .batches import Batch
from .config import TrainingConfig
from .forward import Leaves
from .objective import cross_entropy


def confident_exits(model: OuroModel, batch: Batch, config: TrainingConfig) -> Leaves | None:
    """In a share of a batch's rows, a token leaves as soon as its loss is below a bound.

    Args:
        model: whose loss is looked at; no gradient goes through the decision.
        batch: its rows, of which every 1 / `exit_share` has exits.
        config: `exit_share` and `exit_loss`.
    """
    if config.exit_share == 0:
        return None
    num_rows, num_positions = batch.targets.shape
    counts = jnp.floor(jnp.arange(num_rows + 1) * config.exit_share)
    has_exits = jnp.repeat(jnp.diff(counts) > 0, num_positions)
    targets = jnp.reshape(batch.targets, -1)

    def leaves(loop: int, rows: Float[Array, "T E"]) -> Bool[Array, " T"]:
        losses = cross_entropy(model.logits(jax.lax.stop_gradient(rows)), targets)
        return has_exits & (losses < config.exit_loss)

    return leaves
