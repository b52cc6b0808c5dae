"""The training forward: all positions of a batch, loop by loop, through the engine's own model.

At every loop each position attends to its own example up to itself, over the keys and values of
that loop, which is what the engine computes with a plane of its cache per loop. Only where tokens
leave early is there more to remember than rows.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from looped.models.looped_model import LoopedModel

from .batches import Batch
from .objectives.objective import cross_entropy


class Leaves(Protocol):
    """Which positions leave after a loop, of those that may; `loop` counts from 1."""

    def __call__(self, loop: int, rows: Float[Array, "T E"]) -> Bool[Array, " T"]: ...


def loop_states(
    model: LoopedModel,
    batch: Batch,
    *,
    num_loops: int | None = None,
    is_rematerialised: bool = False,
    leaves: Leaves | None = None,
) -> Float[Array, "P T E"]:
    """The normed rows after each loop, of all T = B * N positions.

    Args:
        model: parameters of any type.
        batch: inputs; targets are not looked at.
        num_loops: P; None takes the model's.
        is_rematerialised: keep only the rows between loops for the gradient, and compute a loop
            again on the way back: memory of one loop instead of P, for a third more work.
        leaves: a generated token that leaves keeps its row, and its keys and values stand for it
            at all later loops (last-exited KV), as in the engine. None: all run every loop.
    """
    attend = _PackedAttention(jnp.asarray(batch.segments))
    positions = jnp.reshape(batch.positions, -1)

    def run_loop(
        rows: Float[Array, "T E"], kept: _KeptPlane | None
    ) -> tuple[Float[Array, "T E"], _KeptPlane | None]:
        passed, kept = model.recurrent_pass(rows, positions, attend, kept)
        return rows_of(kept, rows, passed), kept

    if is_rematerialised:
        run_loop = jax.checkpoint(run_loop)
    rows, states = model.embed(jnp.reshape(batch.token_ids, -1)), []
    kept = None if leaves is None else _KeptPlane.empty(model, rows)
    may_leave = jnp.reshape(batch.is_generated, -1)
    for loop in range(1, (num_loops or model.config.num_loops) + 1):
        rows, kept = run_loop(rows, kept)
        states.append(rows)
        if leaves is not None and kept is not None:
            kept = replace(kept, has_left=kept.has_left | (may_leave & leaves(loop, rows)))
    return jnp.stack(states)


def rows_of(
    kept: "_KeptPlane | None", rows: Float[Array, "T E"], passed: Float[Array, "T E"]
) -> Float[Array, "T E"]:
    """What a loop made of the rows, but for those that had left before it."""
    return passed if kept is None else jnp.where(kept.has_left[:, None], rows, passed)


def loop_losses(
    model: LoopedModel,
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _KeptPlane:
    """Keys and values of the loop before, by layer, and who has left."""

    keys: Float[Array, "L T K D"]
    values: Float[Array, "L T K D"]
    has_left: Bool[Array, " T"]

    @classmethod
    def empty(cls, model: LoopedModel, rows: Float[Array, "T E"]) -> "_KeptPlane":
        config = model.config
        shape = (config.num_layers, rows.shape[0], config.num_kv_heads, config.head_dim)
        zeros = jnp.zeros(shape, rows.dtype)
        return cls(zeros, zeros, jnp.zeros(rows.shape[0], bool))

    def take(
        self,
        layer: int | Int[Array, ""],
        key: Float[Array, "T K D"],
        value: Float[Array, "T K D"],
    ) -> tuple[Float[Array, "T K D"], Float[Array, "T K D"], "_KeptPlane"]:
        """Keys and values of this loop with the kept ones of those that have left, kept in turn."""
        has_left = self.has_left[:, None, None]
        key = jnp.where(has_left, self.keys[layer], key)
        value = jnp.where(has_left, self.values[layer], value)
        kept = replace(
            self, keys=self.keys.at[layer].set(key), values=self.values.at[layer].set(value)
        )
        return key, value, kept


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
        if cache is not None:
            key, value, cache = cache.take(layer, key, value)
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
