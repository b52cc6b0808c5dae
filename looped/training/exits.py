"""Exits in training: a model learns to read what tokens that left early leave behind.

An engine keeps a token's last keys and values where it left, for all deeper loops of the tokens
after it. A model that has only ever seen every token at full depth loses its way over them. Only
the first stage trains so: gates learn from what a token's further loops would bring, and a token
that has left has none.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from looped.models.looped_model import LoopedModel

from .batches import Batch
from .config import PretrainConfig
from .forward import Leaves
from .objectives.objective import cross_entropy


def rows_with_exits(batch: Batch, share: float) -> Bool[Array, " T"]:
    """Which positions lie in the rows where tokens may leave, every 1 / `share` of them.

    The first row is never one.
    """
    num_rows, num_positions = batch.targets.shape
    counts = jnp.floor(jnp.arange(num_rows + 1) * share)
    return jnp.repeat(jnp.diff(counts) > 0, num_positions)


def confident_exits(model: LoopedModel, batch: Batch, config: PretrainConfig) -> Leaves | None:
    """In a share of a batch's rows, a token leaves as soon as its loss is below a bound.

    Args:
        model: whose loss is looked at; no gradient goes through the decision.
        batch: its rows, of which some have exits (`rows_with_exits`).
        config: `exit_share` and `exit_loss`.
    """
    if config.exit_share == 0:
        return None
    has_exits = rows_with_exits(batch, config.exit_share)
    targets = jnp.reshape(batch.targets, -1)

    def leaves(loop: int, rows: Float[Array, "T E"]) -> Bool[Array, " T"]:
        losses = cross_entropy(model.logits(jax.lax.stop_gradient(rows)), targets)
        return has_exits & (losses < config.exit_loss)

    return leaves
