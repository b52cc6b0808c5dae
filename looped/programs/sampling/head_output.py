"""What an LM head returns to the host, of a head or a score: one int32 array, so one read.

Floats travel as their bits.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from looped.device.pytree import register_pytree
from looped.sampling_params import MAX_LOGPROBS
from looped.sched import ScoreResult, TopLogprobs

from .forms import Form
from .sampler import raw_logprobs, top_logprobs

NUM_SINGLE = 3
"""Rows of the array before the two of N rows each."""


@register_pytree
class HeadOutput:
    """Outputs of R rows; N is the most alternatives that can be asked for."""

    token_ids: Any
    """[R] drawn tokens; in a score the most likely ones."""
    logprobs: Any
    """[R] raw log-probabilities, float32: of the drawn tokens, or of those that were scored."""
    is_finite: Any
    """[R] whether all logits of the row were finite."""
    top_token_ids: Any
    """[N R] most likely tokens, or zeros if no row asks; N = 0 in a form that ranks none."""
    top_logprobs: Any
    """[N R] their raw log-probabilities, float32."""

    @classmethod
    def of(
        cls,
        form: Form,
        logits: Float[Array, "R V"],
        token_ids: Int[Array, " R"],
        scored: Int[Array, " R"],
        needs_top_logprobs: Bool[Array, ""],
    ) -> "HeadOutput":
        """What the logits say, inside a compiled step.

        Args:
            form: whether the most likely tokens are found, and whether that is conditional.
            logits: raw ones.
            token_ids: to return for each row.
            scored: the token of each row whose log-probability is wanted.
            needs_top_logprobs: whether any row asks for the most likely tokens.
        """
        top_ids, top_values = _top_logprobs(form, logits, needs_top_logprobs)
        return cls(
            token_ids=token_ids,
            logprobs=raw_logprobs(logits, scored),
            is_finite=jnp.isfinite(logits).all(axis=-1).astype(jnp.int32),
            top_token_ids=top_ids.T,
            top_logprobs=top_values.T,
        )

    def pack(self) -> Int[Array, "outputs R"]:
        """The one array, inside a compiled step."""
        bits = lax.bitcast_convert_type(self.logprobs, jnp.int32)
        singles = jnp.stack([self.token_ids, bits, self.is_finite])
        top_bits = lax.bitcast_convert_type(self.top_logprobs, jnp.int32)
        return jnp.concatenate([singles, self.top_token_ids, top_bits])

    @classmethod
    def unpack(cls, values: np.ndarray[Any, Any]) -> "HeadOutput":
        """NumPy views of what the host has read."""
        token_ids, bits, is_finite = values[:NUM_SINGLE]
        top_token_ids, top_bits = np.split(values[NUM_SINGLE:], 2)
        return cls(
            token_ids=token_ids,
            logprobs=bits.view(np.float32),
            is_finite=is_finite,
            top_token_ids=top_token_ids,
            top_logprobs=top_bits.view(np.float32),
        )

    def alternatives(self, num_logprobs: Sequence[int | None]) -> list[TopLogprobs | None] | None:
        """The most likely tokens of each row; None if no row asks.

        Args:
            num_logprobs: how many each row asks for; None for no list.
        """
        if all(number is None for number in num_logprobs):
            return None
        return [
            None if number is None else self._alternatives(row, number)
            for row, number in enumerate(num_logprobs)
        ]

    def to_score_result(self, num_rows: int, num_logprobs: int) -> ScoreResult:
        """The scheduler's form of a score of `num_rows` tokens, with so many alternatives each."""
        return ScoreResult(
            self.logprobs[:num_rows].tolist(),
            self.token_ids[:num_rows].tolist(),
            bool((self.is_finite[:num_rows] != 0).all()),
            [self._alternatives(row, num_logprobs) for row in range(num_rows)],
        )

    def _alternatives(self, row: int, count: int) -> TopLogprobs:
        token_ids, logprobs = self.top_token_ids[:count, row], self.top_logprobs[:count, row]
        return tuple(zip(token_ids.tolist(), logprobs.tolist(), strict=True))


def _top_logprobs(
    form: Form, logits: Float[Array, "R V"], is_needed: Bool[Array, ""]
) -> tuple[Int[Array, "R N"], Float[Array, "R N"]]:
    """The most likely tokens, as many as can be asked for; zeros where no row asks."""
    num_rows, vocab_size = logits.shape
    width = min(MAX_LOGPROBS, vocab_size) if form.ranks else 0

    def none() -> tuple[Int[Array, "R N"], Float[Array, "R N"]]:
        return jnp.zeros((num_rows, width), jnp.int32), jnp.zeros((num_rows, width))

    if not form.ranks:
        return none()
    if not form.is_conditional:
        return top_logprobs(logits, width)
    return lax.cond(is_needed, lambda: top_logprobs(logits, width), none)
