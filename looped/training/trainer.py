"""The loop of every stage: batch, update, metrics, now and then a checkpoint.

A run is a folder. What was asked is in `run.json`, each update leaves a line in `metrics.jsonl`,
and a checkpoint is the trained values, the optimiser's state and the step. A batch is a function
of the step alone, so a run that was killed goes on from its last checkpoint exactly as it would
have: metrics past the checkpoint are dropped and made again, the same.
"""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from looped.errors import LoopedError
from looped.progress import progress_bars

from .batches import Batch, Batches
from .config import TrainingConfig
from .run_folder import RunFolder

logger = logging.getLogger(__name__)

Objective = Callable[[Any, Any, Batch], tuple[Float[Array, ""], dict[str, Array]]]
"""Loss and metrics of trained values, frozen ones and a batch."""


class TrainingState(NamedTuple):
    """What a checkpoint holds besides the step."""

    trained: Any
    """A pytree of arrays."""
    optimiser: Any


def train(
    run: RunFolder,
    config: TrainingConfig,
    objective: Objective,
    batches: Batches,
    *,
    trained: Any,
    frozen: Any = None,
    weight_decay: float = 0.0,
) -> Any:
    """Runs a stage to its end, from the folder's last checkpoint if there is one.

    Args:
        run: where metrics and checkpoints are.
        config: optimiser and number of steps.
        objective: of the trained values; its gradient is clipped and given to AdamW.
        batches: by step.
        trained: first values; DONATED.
        frozen: whatever else the objective needs.
        weight_decay: of trained matrices; vectors have none.

    Returns:
        The trained values after the last step.

    Raises:
        LoopedError: the loss or its gradient is no longer finite; then the step is neither in the
            metrics nor in a checkpoint.
    """
    optimiser = make_optimiser(config, weight_decay)
    state = TrainingState(trained, optimiser.init(trained))
    first, state = run.restore(state)
    update = jax.jit(partial(_update, objective, optimiser), donate_argnums=0)
    with run.metrics(first) as log, progress_bars() as bars:
        task = bars.add_task("training", total=config.steps, completed=first)
        for step in range(first, config.steps):
            started = time.perf_counter()
            state, metrics = update(state, frozen, batches.at(step))
            values = {name: np.asarray(value).tolist() for name, value in metrics.items()}
            check_finite(step + 1, values)
            log.write(step + 1, values | {"seconds": round(time.perf_counter() - started, 3)})
            bars.update(task, advance=1, description=f"training, loss {values['loss']:.4f}")
            if (step + 1) % config.checkpoint_interval == 0 or step + 1 == config.steps:
                log.flush()
                run.save(step + 1, state)
                logger.info("step %d: loss %.4f", step + 1, values["loss"])
    return state.trained


def check_finite(step: int, values: Mapping[str, Any]) -> None:
    """LoopedError for a loss or a gradient that is no number."""
    for name in ("loss", "gradient_norm"):
        if not np.isfinite(values[name]):
            raise LoopedError(
                f"{name} is {values[name]} at step {step}; begin another run (--out) with a lower "
                "--learning-rate or a longer --warmup-steps"
            )


def make_optimiser(
    config: TrainingConfig, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """Clipping, then AdamW under warm-up and cosine; weight decay for matrices alone."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adamw(
            learning_rates(config),
            b2=0.98,
            weight_decay=weight_decay,
            mask=lambda values: jax.tree.map(lambda value: value.ndim > 1, values),
        ),
    )


def learning_rates(config: TrainingConfig) -> optax.Schedule:
    """Learning rate by step: up to the peak in a line, down to its share in a cosine."""
    return optax.warmup_cosine_decay_schedule(
        0.0,
        config.learning_rate,
        config.warmup_steps,
        config.steps,
        config.learning_rate * config.final_learning_rate,
    )


def _update(
    objective: Objective,
    optimiser: optax.GradientTransformation,
    state: TrainingState,
    frozen: Any,
    batch: Batch,
) -> tuple[TrainingState, dict[str, Array]]:
    def loss_of(trained: Any) -> tuple[Float[Array, ""], dict[str, Array]]:
        return objective(trained, frozen, batch)

    (loss, metrics), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.trained)
    changes, optimiser_state = optimiser.update(gradient, state.optimiser, state.trained)
    metrics = {"loss": loss, **metrics, "gradient_norm": _norm(gradient)}
    return TrainingState(optax.apply_updates(state.trained, changes), optimiser_state), metrics


def _norm(values: Any) -> Float[Array, ""]:
    """Length of all values as one vector. optax's own has another name in every release."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(values)))
