"""First stage: all of a model learns, over all exit depths at once."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from looped.models.looped_model import LoopedModel

from .batches import Batch, Batches, token_shares
from .config import PretrainConfig
from .exits import confident_exits, rows_with_exits
from .forward import loop_losses, loop_states
from .objectives.objective import expected_loss, log_exit_probabilities
from .run_folder import RunFolder
from .trainer import train


def pretrain(
    run: RunFolder, config: PretrainConfig, model: LoopedModel, batches: Batches
) -> LoopedModel:
    """Trains a model with the first-stage objective; returns it trained.

    Args:
        run: where metrics and checkpoints are.
        config: optimiser, number of steps, entropy's weight.
        model: float32; its arrays are DONATED.
        batches: by step.
    """
    graph, parameters = nnx.split(model)

    def objective(
        parameters: Any, _: None, batch: Batch
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        model: LoopedModel = nnx.merge(graph, parameters)
        states = loop_states(
            model,
            batch,
            is_rematerialised=config.rematerialise,
            leaves=confident_exits(model, batch, config),
        )
        gates = jax.vmap(model.gate_logits)(states)
        losses = loop_losses(model, states, batch, is_rematerialised=config.rematerialise)
        exits = jnp.exp(log_exit_probabilities(gates))
        # A token that left repeats its loss at later loops, which says nothing of those loops.
        whole = token_shares(batch, ~rows_with_exits(batch, config.exit_share))
        metrics = {"loop_losses": losses @ whole, "exit_shares": exits @ whole}
        loss = expected_loss(losses, gates, config.entropy_weight) @ token_shares(batch)
        return loss, metrics

    trained = train(
        run, config, objective, batches, trained=parameters, weight_decay=config.weight_decay
    )
    return nnx.merge(graph, trained)
