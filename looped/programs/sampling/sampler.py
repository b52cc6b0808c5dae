"""Drawing the next token on the device, for a batch of rows that each have their own options.

Order: temperature, top-k, top-p, min-p, on logits that `logit_edits` has edited for the rows that
ask for it; log-probabilities come from the raw logits. A draw is the argmax of scaled logits plus
Gumbel noise from the row's own key, so it depends on nothing but the row: neither on its neighbours
nor on its place in the batch.

No option sorts the vocabulary (141 ms for 16 x 49,152 on a CPU). Top-k and top-p search for the
threshold that separates kept from dropped tokens, by bisection over the order of float32 bit
patterns, which is exact after 32 steps.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from looped.device.pytree import register_pytree

from .forms import Form

DROPPED = -jnp.inf


@register_pytree
class SamplingRows:
    """Sampling options of each row of a head."""

    temperature: Float[Array, " R"]
    """0 is greedy."""
    top_k: Int[Array, " R"]
    """V keeps all."""
    top_p: Float[Array, " R"]
    """1 keeps all."""
    min_p: Float[Array, " R"]
    """0 keeps all."""
    is_edited: Int[Array, " R"]
    """Whether the row has a bias, a penalty or stop ids held back; 0 makes the next four idle."""
    repetition_penalty: Float[Array, " R"]
    presence_penalty: Float[Array, " R"]
    frequency_penalty: Float[Array, " R"]
    min_tokens: Int[Array, " R"]
    """Outputs before which no stop id is drawn."""
    seed: UInt32[Array, "R 2"]
    """High and low word of the seed, the key's two words. Below 2**32 that is `jax.random.key`;
    above, JAX without 64-bit mode would drop the high word."""
    sample_index: Int[Array, " R"]
    """Which of its prompt's samples the row belongs to."""
    output_index: Int[Array, " R"]
    """Which output token of its request the row draws."""
    wants_top: Int[Array, " R"]
    """Whether the most likely tokens are returned with it."""


def sample(form: Form, logits: Float[Array, "R V"], rows: SamplingRows) -> Int[Array, " R"]:
    """Next token ids. Greedy rows are exact argmax.

    Args:
        form: what is done for every row; a conditional one draws and searches nothing that no row
            asks for.
        logits: edited ones.
        rows: options of each row.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    is_drawn = rows.temperature > 0

    def draw() -> Int[Array, " R"]:
        kept = logits / jnp.where(is_drawn, rows.temperature, 1.0)[:, None]
        vocab_size = logits.shape[-1]
        if form.filters:
            for keep, limits, is_asked in (
                (keep_top_k, rows.top_k, rows.top_k < vocab_size),
                (keep_top_p, rows.top_p, rows.top_p < 1),
                (keep_min_p, rows.min_p, rows.min_p > 0),
            ):
                kept = _kept(form, is_drawn & is_asked, keep, kept, limits)
        noise = jax.vmap(_gumbel, in_axes=(0, 0, 0, None))(
            rows.seed, rows.sample_index, rows.output_index, vocab_size
        )
        return jnp.argmax(kept + noise, axis=-1).astype(jnp.int32)

    if not form.draws:
        return greedy
    drawn = lax.cond(jnp.any(is_drawn), draw, lambda: greedy) if form.is_conditional else draw()
    return jnp.where(is_drawn, drawn, greedy)


def raw_logprobs(logits: Float[Array, "R V"], token_ids: Int[Array, " R"]) -> Float[Array, " R"]:
    """log softmax(logits) at one id per row."""
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=-1)


def top_logprobs(
    logits: Float[Array, "R V"], count: int
) -> tuple[Int[Array, "R count"], Float[Array, "R count"]]:
    """Ids and raw log-probabilities of each row's most likely tokens; of equals the lower id."""
    values, token_ids = lax.top_k(logits, count)
    return token_ids, values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)


def keep_top_k(logits: Float[Array, "R V"], top_k: Int[Array, " R"]) -> Float[Array, "R V"]:
    """Drops what is smaller than the k-th largest logit; its equals stay."""
    order = _sortable(logits)

    def is_enough(threshold: Int[Array, " R"]) -> Bool[Array, " R"]:
        return jnp.sum(order >= threshold[:, None], axis=-1) >= top_k

    return jnp.where(order >= _largest(is_enough, logits.shape[0])[:, None], logits, DROPPED)


def keep_top_p(logits: Float[Array, "R V"], top_p: Float[Array, " R"]) -> Float[Array, "R V"]:
    """Drops what is smaller than the last logit needed to reach probability p; its equals stay.

    A row with p = 1 keeps everything: its sum may round to 1 before the last token.
    """
    probabilities = jax.nn.softmax(logits, axis=-1)
    order = _sortable(logits)

    def is_enough(threshold: Int[Array, " R"]) -> Bool[Array, " R"]:
        kept = jnp.where(order >= threshold[:, None], probabilities, 0.0)
        return jnp.sum(kept, axis=-1) >= top_p

    # Rounding can leave the whole sum below p = 0.9999999; the search then keeps everything.
    is_kept = order >= _largest(is_enough, logits.shape[0])[:, None]
    return jnp.where(is_kept | (top_p >= 1)[:, None], logits, DROPPED)


def keep_min_p(logits: Float[Array, "R V"], min_p: Float[Array, " R"]) -> Float[Array, "R V"]:
    """Drops what is less than min_p times as likely as the most likely token."""
    threshold = logits.max(axis=-1) + jnp.log(min_p)
    return jnp.where(logits >= threshold[:, None], logits, DROPPED)


def _kept(
    form: Form,
    is_asked: Bool[Array, " R"],
    keep: Callable[[Array, Array], Array],
    logits: Float[Array, "R V"],
    limits: Array,
) -> Float[Array, "R V"]:
    """What a filter leaves, of rows that ask for it; the others keep their bits."""
    if form.is_conditional:
        return lax.cond(jnp.any(is_asked), keep, lambda logits, _: logits, logits, limits)
    return jnp.where(is_asked[:, None], keep(logits, limits), logits)


def _gumbel(
    seed: UInt32[Array, "2"],
    sample_index: Int[Array, ""],
    output_index: Int[Array, ""],
    vocab_size: int,
) -> Float[Array, " V"]:
    """Noise of one sample of a request at one output token."""
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    sample_key = jax.random.fold_in(key, sample_index)
    output_key = jax.random.fold_in(sample_key, output_index)
    # The mode is JAX's default, unless the environment names the other, which draws other tokens.
    return jax.random.gumbel(output_key, (vocab_size,), jnp.float32, mode="low")


def _sortable(values: Float[Array, "R V"]) -> Int[Array, "R V"]:
    """int32 in the order of the floats: negative ones have their magnitude bits flipped."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest(
    is_enough: Callable[[Int[Array, " R"]], Bool[Array, " R"]], num_rows: int
) -> Int[Array, " R"]:
    """The largest int32 per row for which a predicate that turns false upwards still holds."""

    def halve(
        _: int, bounds: tuple[Int[Array, " R"], Int[Array, " R"]]
    ) -> tuple[Int[Array, " R"], Int[Array, " R"]]:
        low, high = bounds
        # Mean of two int32 without overflow, rounded up.
        middle = (low >> 1) + (high >> 1) + ((low | high) & 1)
        enough = is_enough(middle)
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)

    low = jnp.full((num_rows,), -(2**31), jnp.int32)
    high = jnp.full((num_rows,), 2**31 - 1, jnp.int32)
    return lax.fori_loop(0, 33, halve, (low, high))[0]
