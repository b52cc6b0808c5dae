"""The training forward: all positions of a batch, loop by loop, through the engine's own model.

No cache: at every loop each position attends to its own example up to itself, over the keys and
values of that loop, which is what the engine computes with a plane of its cache per loop.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from looped.models import OuroModel

from .batches import Batch
from .objective import cross_entropy


def loop_states(
    model: OuroModel, batch: Batch, *, num_loops: int | None = None, is_rematerialised: bool = False
) -> Float[Array, "P T E"]:
    """The normed rows after each loop, of all T = B * N positions.

    Args:
        model: parameters of any type.
        batch: inputs; targets are not looked at.
        num_loops: P; None takes the model's.
        is_rematerialised: keep only the rows between loops for the gradient, and compute a loop
            again on the way back: memory of one loop instead of P, for a third more work.
    """
    attend = _PackedAttention(jnp.asarray(batch.segments))
    positions = jnp.reshape(batch.positions, -1)

    def run_loop(rows: Float[Array, "T E"]) -> Float[Array, "T E"]:
        return model.recurrent_pass(rows, positions, attend, None)[0]

    if is_rematerialised:
        run_loop = jax.checkpoint(run_loop)
    rows, states = model.embed(jnp.reshape(batch.token_ids, -1)), []
    for _ in range(num_loops or model.config.num_loops):
        rows = run_loop(rows)
        states.append(rows)
    return jnp.stack(states)


def loop_losses(
    model: OuroModel,
    states: Float[Array, "P T E"],
    batch: Batch,
    *,
    is_rematerialised: bool = False,
) -> Float[Array, "P T"]:
    """Cross-entropy of every position's target after every loop, in float32.

    One loop's logits at a time, [T V]; rematerialised, they are not kept for the gradient either.
    """
    targets = jnp.reshape(batch.targets, -1)

    def losses_of(rows: Float[Array, "T E"]) -> Float[Array, " T"]:
        return cross_entropy(model.logits(rows), targets)

    if is_rematerialised:
        losses_of = jax.checkpoint(losses_of)
    return jnp.stack([losses_of(rows) for rows in states])


class _PackedAttention:
    """Rows of a batch attend to earlier positions of their own example, softmax in float32."""

    def __init__(self, segments: Int[Array, "B N"]) -> None:
        self._shape = segments.shape
        places = jnp.arange(segments.shape[1])
        is_same = segments[:, :, None] == segments[:, None, :]
        self._is_visible: Bool[Array, "B N N"] = is_same & (places[:, None] >= places)

    def __call__(
        self,
        layer: int | Int[Array, ""],
        query: Float[Array, "T H D"],
        key: Float[Array, "T K D"],
        value: Float[Array, "T K D"],
        cache: Any,
    ) -> tuple[Float[Array, "T H D"], Any]:
        _, num_heads, head_dim = query.shape
        num_kv_heads = key.shape[1]
        grouped = query.reshape(*self._shape, num_kv_heads, num_heads // num_kv_heads, head_dim)
        keys, values = (part.reshape(*self._shape, num_kv_heads, head_dim) for part in (key, value))
        scores = jnp.einsum(
            "bikgd,bjkd->bkgij",
            grouped.astype(jnp.float32) * head_dim**-0.5,
            keys.astype(jnp.float32),
            precision=lax.Precision.HIGHEST,
        )
        scores = jnp.where(self._is_visible[:, None, None], scores, -jnp.inf)
        mixed = jnp.einsum(
            "bkgij,bjkd->bikgd",
            jax.nn.softmax(scores, axis=-1),
            values.astype(jnp.float32),
            precision=lax.Precision.HIGHEST,
        )
        return mixed.reshape(query.shape).astype(query.dtype), cache
