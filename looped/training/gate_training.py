"""Second stage and look-ahead gate: a few numbers learn beside a frozen backbone."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from looped.convert import LookaheadGate
from looped.models import GATE_BIAS, GATE_WEIGHT
from looped.models.looped_model import LoopedModel
from looped.models.parameters import parameter_arrays

from .batches import Batch, Batches, token_shares
from .config import GateConfig, LookaheadConfig
from .forward import loop_losses, loop_states
from .objectives.gate_objective import continue_targets, gate_loss
from .objectives.lookahead_objective import lookahead_loss
from .run_folder import RunFolder
from .trainer import train

Gate = dict[str, Array]
"""`weight` [... E] and `bias` [...] of a linear gate on the normed row, float32."""


def train_gate(run: RunFolder, config: GateConfig, model: LoopedModel, batches: Batches) -> Gate:
    """Trains the model's exit gate by what more loops bring; returns the new gate.

    Args:
        run: where metrics and checkpoints are.
        config: optimiser, number of steps, what a gain is worth.
        model: of any type; every token runs all its loops.
        batches: by step.
    """
    graph, backbone = nnx.split(model)

    def objective(
        gate: Gate, backbone: Any, batch: Batch
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        frozen: LoopedModel = nnx.merge(graph, jax.lax.stop_gradient(backbone))
        states = loop_states(frozen, batch)
        losses = loop_losses(frozen, states, batch)
        gates = gate_logits(gate, states)
        shares = token_shares(batch)
        goes_on = continue_targets(losses, slope=config.slope, margin=config.margin)
        metrics = {
            "loop_losses": losses @ shares,
            "hazards": jax.nn.sigmoid(gates[:-1]) @ shares,
            "targets": (1.0 - goes_on) @ shares,
        }
        return gate_loss(gates, losses, slope=config.slope, margin=config.margin) @ shares, metrics

    return train(run, config, objective, batches, trained=_gate_of(model), frozen=backbone)


def train_lookahead(
    run: RunFolder, config: LookaheadConfig, model: LoopedModel, batches: Batches
) -> LookaheadGate:
    """Trains a head for each loop r that says what the model's own gate will say after r + 1."""
    graph, backbone = nnx.split(model)

    def objective(
        gate: Gate, backbone: Any, batch: Batch
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        frozen: LoopedModel = nnx.merge(graph, jax.lax.stop_gradient(backbone))
        states = loop_states(frozen, batch)
        students = jax.vmap(gate_logits)(gate, states[:-2])
        teachers = gate_logits(_gate_of(frozen), states[1:-1])
        entropy, errors = lookahead_loss(students, teachers)
        shares = token_shares(batch)
        metrics = {"cross_entropy": entropy @ shares, "cdf_error": errors @ shares}
        return (entropy + errors) @ shares, metrics

    num_heads = model.config.num_loops - 2
    first = {
        "weight": jnp.zeros((num_heads, model.config.hidden_size)),
        "bias": jnp.zeros((num_heads,)),
    }
    gate: Gate = train(
        run,
        config,
        objective,
        batches,
        trained=first,
        frozen=backbone,
        weight_decay=config.weight_decay,
    )
    return LookaheadGate(np.asarray(gate["weight"]), np.asarray(gate["bias"]))


def gate_logits(gate: Gate, states: Float[Array, "*rows E"]) -> Float[Array, "*rows"]:
    """w . h + b in float32."""
    return states.astype(jnp.float32) @ gate["weight"] + gate["bias"]


def _gate_of(model: LoopedModel) -> Gate:
    arrays = dict(parameter_arrays(model))
    return {
        "weight": jnp.array(arrays[GATE_WEIGHT][0], jnp.float32),
        "bias": jnp.array(arrays[GATE_BIAS][0], jnp.float32),
    }
