"""When decode rows leave the loop, decided on the device after a pass: the rules of
`looped.sched.exits`, for all rows at once.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from looped.device.request_table import RowOptions, RowProgress
from looped.sched import ExitMode

from .parameters import Parameters

EXIT_MODES = tuple(ExitMode)
"""A row's mode is an index into these."""
OURO, OURO_DELAYED, TRACE = map(
    EXIT_MODES.index, (ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.TRACE)
)
LOOKAHEAD = EXIT_MODES.index(ExitMode.LOOKAHEAD)


def after_pass(
    parameters: Parameters,
    rows: Float[Array, "R E"],
    progress: RowProgress,
    options: RowOptions,
    traced: Int[Array, " R"],
) -> tuple[RowProgress, Float[Array, " R"]]:
    """How far decode rows have come after one more loop, and sigmoid of their gates.

    Args:
        parameters: with the model's gate and the look-ahead heads.
        rows: states after the pass.
        progress: before it.
        options: exit rules.
        traced: depth that a trace records for the token, looked at where it does.
    """
    leave = jax.nn.sigmoid(parameters.model.gate_logits(rows))
    before = jnp.where(progress.depth == 0, 1.0, progress.survival)
    survival = before * (1.0 - leave)
    loop, mode = progress.depth + 1, options.exit_mode
    is_ouro, is_delayed = mode == OURO, mode == OURO_DELAYED
    scores = parameters.lookahead.scores(rows, progress.depth, mode == LOOKAHEAD)
    signal = jnp.where(is_ouro | is_delayed, 1.0 - survival, scores)

    is_traced = (mode == TRACE) & (progress.num_outputs < options.trace_length)
    last = jnp.where(is_traced, traced, options.max_loops)
    first = options.min_loops - jnp.where(is_ouro | is_delayed, 0, 1)
    end = options.max_loops - jnp.where(is_ouro, 0, 1)
    is_pending = progress.is_pending != 0
    is_deciding = (options.threshold < 1.0) & ~is_pending & (first <= loop) & (loop < end)
    fires = is_deciding & (signal >= options.threshold)
    is_leaving = is_pending | (loop >= last) | (fires & is_ouro)
    after = replace(
        progress,
        depth=loop,
        survival=survival,
        is_pending=(fires & ~is_leaving).astype(jnp.int32),
        is_leaving=is_leaving.astype(jnp.int32),
    )
    return after, leave
