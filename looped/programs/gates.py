"""What decode rows ask of the gates after a pass, and the signals that result."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from looped.sched import ExitMode, ItemKind, ScheduledItem

from .parameters import Parameters

GATE_NONE = 0
"""A decode row whose exit does not depend on a signal of this launch."""
GATE_OURO = 1
"""The model's gate, multiplied into the row's survival product."""
GATE_RANDOM_LOOKAHEAD = 2
"""The random look-ahead head; it has no memory."""
GATE_LOOKAHEAD = 3
"""The trained look-ahead head of the row's loop; no memory either."""
GATE_RECORDED = 4
"""The model's gate alone, for a record of it; the row's survival product stays as it is."""

GATES = {
    ExitMode.OURO: GATE_OURO,
    ExitMode.OURO_DELAYED: GATE_OURO,
    ExitMode.RANDOM_LOOKAHEAD: GATE_RANDOM_LOOKAHEAD,
    ExitMode.LOOKAHEAD: GATE_LOOKAHEAD,
}
"""What a row asks of the device where its mode needs a gate."""


def gate_of(item: ScheduledItem) -> int:
    """What a decode item's row asks of this pass."""
    assert item.kind is ItemKind.DECODE
    if not item.runs_gate:
        return GATE_NONE
    return GATES[item.request.exit_rule.mode]


def run_gates(
    parameters: Parameters,
    survival: Float[Array, " slots"],
    rows: Float[Array, "R E"],
    slots: Int[Array, " R"],
    depths: Int[Array, " R"],
    gates: Int[Array, " R"],
) -> tuple[Float[Array, " slots"], Float[Array, " R"]]:
    """Survival products with this loop's gate multiplied in, and the signals of all rows.

    Args:
        parameters: with the model's gate and the look-ahead heads.
        survival: the product of each slot.
        rows: states of the decode rows after the pass.
        slots: of each row, or one past the end for none.
        depths: that each row has run.
        gates: what each row asks, GATE_NONE and so on.
    """
    leave = jax.nn.sigmoid(parameters.model.gate_logits(rows))
    before = survival.at[slots].get(mode="clip")
    after = jnp.where(depths == 0, 1.0, before) * (1.0 - leave)
    is_ouro = gates == GATE_OURO
    # A slot past the end is dropped: rows without Ouro's gate keep their product.
    written = jnp.where(is_ouro, slots, survival.shape[0])
    is_trained = gates == GATE_LOOKAHEAD
    is_lookahead = is_trained | (gates == GATE_RANDOM_LOOKAHEAD)
    scores = parameters.lookahead.scores(rows, depths, is_trained)
    recorded = jnp.where(gates == GATE_RECORDED, leave, 0.0)
    signals = jnp.where(is_ouro, 1.0 - after, jnp.where(is_lookahead, scores, recorded))
    return survival.at[written].set(after, mode="drop"), signals
