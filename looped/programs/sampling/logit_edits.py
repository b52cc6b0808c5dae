"""What changes a row's logits before anything is drawn: bias, penalties, stop ids held back.

Device state keeps two rows of the vocabulary's width per slot, a bias and `token_marks`. A request
that asks for an edit brings both in one upload of its own, written (`writers.edit`) before its
first launch: tokens that the prefix cache holds never pass through a launch. They replace whatever
the slot's last owner left; a request that asks for none never reads its slot's rows.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .sampler import DROPPED, SamplingRows

IN_PROMPT = 1
"""Mark of a token that is in the prompt."""
ENDS_REQUEST = 2
"""Mark of a stop id."""
ONE_OUTPUT = 4
"""Added to a token's marks for every time that it is in the output."""


def edit_logits(
    logits: Float[Array, "R V"],
    token_marks: Int[Array, "R V"],
    logit_bias: Float[Array, "R V"],
    rows: SamplingRows,
) -> Float[Array, "R V"]:
    """Bias, then repetition, presence and frequency penalty; stop ids are dropped if held back.

    A row that is not edited keeps its bits.
    """
    count = (token_marks // ONE_OUTPUT).astype(logits.dtype)
    is_seen = (token_marks & IN_PROMPT != 0) | (count > 0)
    edited = logits + logit_bias
    repetition = rows.repetition_penalty[:, None]
    edited = jnp.where(
        is_seen, jnp.where(edited > 0, edited / repetition, edited * repetition), edited
    )
    edited -= jnp.where(count > 0, rows.presence_penalty[:, None], 0.0)
    edited -= count * rows.frequency_penalty[:, None]
    is_held = (rows.output_index < rows.min_tokens)[:, None] & (token_marks & ENDS_REQUEST != 0)
    edited = jnp.where(is_held, DROPPED, edited)
    return jnp.where((rows.is_edited != 0)[:, None], edited, logits)


def count_outputs(
    token_marks: Int[Array, "slots V"],
    slots: Int[Array, " R"],
    token_ids: Int[Array, " R"],
    is_edited: Int[Array, " R"],
) -> Int[Array, "slots V"]:
    """Marks with the drawn tokens of edited rows counted; one entry a row is touched."""
    counted = jnp.where(is_edited != 0, slots, token_marks.shape[0])
    return token_marks.at[counted, token_ids].add(ONE_OUTPUT, mode="drop")
