"""The readable oracle: one sequence at a time, a dense cache, every rule written out.

No paging, no batching, no buckets. The engine is tested against this file, so it shares the model
with the engine and nothing else; where the two differ, this one is meant to be checked by eye
against the paper and the goldens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from looped.convert import LookaheadGate
from looped.models.looped_model import LoopedModel

from .errors import UsageError

ExitMode = Literal["ouro", "ouro_delayed", "random_lookahead", "lookahead", "trace"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseCache:
    """Keys and values of one sequence: a plane per loop depth, each of all layers."""

    keys: Float[Array, "P L N K D"]
    values: Float[Array, "P L N K D"]

    @classmethod
    def zeros(cls, model: LoopedModel, num_positions: int) -> "DenseCache":
        """An empty cache in the model's own type."""
        config = model.config
        shape = (
            config.num_loops,
            config.num_layers,
            num_positions,
            config.num_kv_heads,
            config.head_dim,
        )
        dtype = model.dtype
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    @jax.jit
    def fill_deeper_planes(
        self, position: Int[Array, ""] | int, exit_loop: Int[Array, ""] | int
    ) -> "DenseCache":
        """Last-exited KV: planes `exit_loop` and deeper take this position from the last one run.

        A later query at depth d then sees a token that left after loop e as version min(d, e-1).
        """

        def fill(planes: Float[Array, "P L N K D"]) -> Float[Array, "P L N K D"]:
            own, last = planes[:, :, position], planes[exit_loop - 1, :, position]
            is_deeper = jnp.arange(planes.shape[0]) >= exit_loop
            filled = jnp.where(is_deeper[:, None, None, None], last, own)
            return planes.at[:, :, position].set(filled)

        return DenseCache(fill(self.keys), fill(self.values))


@dataclass(frozen=True, kw_only=True)
class ReferenceToken:
    """One emitted token."""

    token_id: int
    exit_depth: int
    """Loops that were run for it, 1-based; the first token's is P, as the prompt's."""
    logits: Float[np.ndarray, " V"]


def generate(
    model: LoopedModel,
    prompt_token_ids: Sequence[int],
    *,
    max_tokens: int,
    mode: ExitMode = "ouro",
    threshold: float = 1.0,
    min_loops: int = 1,
    max_loops: int | None = None,
    trace: Sequence[int] | None = None,
    lookahead_head: Float[Array, " E"] | None = None,
    lookahead_gate: LookaheadGate | None = None,
    forced_token_ids: Sequence[int] = (),
) -> Iterator[ReferenceToken]:
    """Greedy tokens, without an end: the prompt at full depth, then each token by its exit rule.

    Args:
        model: the looped model, P loops deep.
        prompt_token_ids: at least one id.
        max_tokens: how many tokens to emit.
        mode: `ouro` leaves after the first loop r >= min_loops whose cumulative exit probability
            reaches the threshold; `ouro_delayed` decides the same and leaves one loop later;
            `random_lookahead` scores the normed row with a frozen head, and a score that reaches
            the threshold after loop r means leaving after r + 1; `lookahead` is the same with a
            trained head for each loop;
            `trace` leaves where `trace` says, by output token, and runs P loops past its end.
        threshold: 1 never leaves early, whatever rounding does.
        min_loops, max_loops: bounds on the loops of a token; max_loops None is P.
        trace: loops per output token, the first P, only for mode `trace`.
        lookahead_head: float32 head of mode `random_lookahead`, only there.
        lookahead_gate: heads of mode `lookahead`, only there.
        forced_token_ids: first tokens to emit instead of the most likely ones; the logits that
            come with them are still the model's.

    Raises:
        UsageError: for an empty prompt or options that contradict each other.
    """
    num_loops = model.config.num_loops
    max_loops = num_loops if max_loops is None else max_loops
    if not prompt_token_ids:
        raise UsageError("the prompt must hold at least one token")
    if not 1 <= min_loops <= max_loops <= num_loops:
        raise UsageError(
            f"expected 1 <= min_loops <= max_loops <= {num_loops}, "
            f"got min_loops {min_loops}, max_loops {max_loops}"
        )
    _check_mode(mode, trace=trace, random_lookahead=lookahead_head, lookahead=lookahead_gate)
    num_prompt = len(prompt_token_ids)
    # Rounded up, so that sequences of similar length share a compilation. Rows behind the prompt
    # are seen by none of its own, and generated tokens take their places before they are looked at.
    num_rows = max(16, 1 << (num_prompt - 1).bit_length())
    num_positions = -(-max(num_prompt + max_tokens, num_rows) // 64) * 64
    cache = DenseCache.zeros(model, num_positions)

    rows = embed(model, np.pad(np.asarray(prompt_token_ids), (0, num_rows - num_prompt)))
    positions = np.arange(num_rows)
    for depth in range(num_loops):
        rows, _, cache = run_loop(model, rows, positions, depth, cache)
    row, exit_loop = _row_at(rows, num_prompt - 1), num_loops

    for index in range(max_tokens):
        logits = np.asarray(head_logits(model, row))[0]
        is_forced = index < len(forced_token_ids)
        token_id = forced_token_ids[index] if is_forced else int(logits.argmax())
        yield ReferenceToken(token_id=token_id, exit_depth=exit_loop, logits=logits)
        if index + 1 == max_tokens:
            return
        position = num_prompt + index
        row = embed(model, np.asarray([token_id]))
        # The rule lives out here, in plain Python: one float per loop decides.
        survival, leave_at = np.float32(1.0), None
        for loop in range(1, num_loops + 1):
            row, gates, cache = run_loop(model, row, np.asarray([position]), loop - 1, cache)
            survival *= np.float32(1.0) - np.float32(_sigmoid(gates)[0])
            signal, first_deciding = np.float32(1.0) - survival, min_loops
            if lookahead_head is not None:
                signal = np.float32(_head_signal(row, lookahead_head))
                first_deciding = min_loops - 1
            if lookahead_gate is not None and loop < num_loops - 1:
                head, bias = lookahead_gate.weight[loop - 1], lookahead_gate.bias[loop - 1]
                signal = np.float32(_head_signal(row, head, bias))
                first_deciding = min_loops - 1
            fires = threshold < 1.0 and loop >= first_deciding and signal >= np.float32(threshold)
            if trace is not None:
                wanted = trace[index + 1] if index + 1 < len(trace) else num_loops
            elif mode == "ouro":
                wanted = loop if fires else max_loops
            else:
                leave_at = leave_at or (loop + 1 if fires else None)
                wanted = min(leave_at or max_loops, max_loops)
            if loop == wanted:
                break
        exit_loop = loop
        cache = cache.fill_deeper_planes(position, exit_loop)


def _check_mode(mode: ExitMode, **options: object) -> None:
    """UsageError for a mode without the option that is its own, or with another's."""
    for needed_by, option in options.items():
        if (mode == needed_by) != (option is not None):
            raise UsageError(f"exit mode {mode}: a {needed_by} option is for that mode alone")


@jax.jit
def _head_signal(
    row: Float[Array, "1 E"], head: Float[Array, " E"], bias: Float[Array, ""] | float = 0.0
) -> Float[Array, ""]:
    """What a look-ahead head says of a row, in float32."""
    return jax.nn.sigmoid(row[0].astype(jnp.float32) @ head + bias)


@jax.jit
def run_loop(
    model: LoopedModel,
    rows: Float[Array, "T E"],
    positions: Int[Array, " T"],
    depth: Int[Array, ""] | int,
    cache: DenseCache,
) -> tuple[Float[Array, "T E"], Float[Array, " T"], DenseCache]:
    """One recurrent pass of rows that are all at one depth.

    Returns:
        The normed rows, their gate logits (float32) and the cache with plane `depth` written.
    """
    rows, cache = model.recurrent_pass(rows, positions, _DenseAttention(positions, depth), cache)
    return rows, model.gate_logits(rows), cache


class _DenseAttention:
    """Every row attends to all positions of its plane up to its own, softmax in float32."""

    def __init__(self, positions: Int[Array, " T"], depth: Int[Array, ""] | int) -> None:
        self._positions, self._depth = positions, depth

    def __call__(
        self,
        layer: int | Int[Array, ""],
        query: Float[Array, "T H D"],
        key: Float[Array, "T K D"],
        value: Float[Array, "T K D"],
        cache: DenseCache,
    ) -> tuple[Float[Array, "T H D"], DenseCache]:
        place = (self._depth, layer, self._positions)
        cache = DenseCache(cache.keys.at[place].set(key), cache.values.at[place].set(value))
        num_rows, num_heads, head_dim = query.shape
        num_kv_heads = key.shape[1]
        grouped = query.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = jnp.einsum(
            "tkgd,nkd->tkgn",
            grouped.astype(jnp.float32) * head_dim**-0.5,
            cache.keys[self._depth, layer].astype(jnp.float32),
            precision=lax.Precision.HIGHEST,
        )
        is_visible = jnp.arange(scores.shape[-1]) <= self._positions[:, None]
        scores = jnp.where(is_visible[:, None, None, :], scores, -jnp.inf)
        mixed = jnp.einsum(
            "tkgn,nkd->tkgd",
            jax.nn.softmax(scores, axis=-1),
            cache.values[self._depth, layer].astype(jnp.float32),
            precision=lax.Precision.HIGHEST,
        )
        return mixed.reshape(query.shape).astype(query.dtype), cache


@jax.jit
def _row_at(rows: Float[Array, "T E"], index: Int[Array, ""] | int) -> Float[Array, "1 E"]:
    return rows[index][None]


_sigmoid = jax.jit(jax.nn.sigmoid)


@jax.jit
def embed(model: LoopedModel, token_ids: Int[Array, " T"]) -> Float[Array, "T E"]:
    """Rows of tokens before their first loop."""
    return model.embed(token_ids)


@jax.jit
def head_logits(model: LoopedModel, rows: Float[Array, "T E"]) -> Float[Array, "T V"]:
    """Logits of normed rows, float32."""
    return model.logits(rows)
