"""A plain sampler in NumPy, one row at a time, by the formulas of the contract."""

import jax
import jax.numpy as jnp
import numpy as np


def noise_of(seed, output_index, size, sample_index=0):
    """Gumbel noise of a sample of a request, by the formula of the contract."""
    words = jnp.asarray([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    if seed < 2**31:
        assert key == jax.random.key(seed)
    key = jax.random.fold_in(jax.random.fold_in(key, sample_index), output_index)
    return np.asarray(jax.random.gumbel(key, (size,)))


def numpy_kept(logits, top_k, top_p, min_p):
    """Which tokens a plain sorted sampler keeps; ties with the last kept one stay."""
    kept = logits >= np.sort(logits)[::-1][min(top_k, logits.size) - 1]
    if top_p < 1.0:
        weights = np.where(kept, np.exp(logits - logits.max(), dtype=np.float64), 0.0)
        order = np.argsort(-logits, kind="stable")
        reached = np.cumsum(weights[order] / weights.sum())
        last = order[min(np.searchsorted(reached, top_p), logits.size - 1)]
        kept &= logits >= logits[last]
    if min_p > 0:
        kept &= logits >= logits.max() + np.log(np.float32(min_p))
    return kept


def numpy_sample(logits, temperature, top_k, top_p, min_p, seed, output_index, sample_index=0):
    if temperature == 0:
        return int(logits.argmax())
    scaled = (logits / np.float32(temperature)).astype(np.float32)
    kept = numpy_kept(scaled, top_k, top_p, min_p)
    noise = noise_of(seed, output_index, logits.size, sample_index)
    return int(np.where(kept, scaled + noise, -np.inf).argmax())


def numpy_edited(logits, prompt, outputs, params, stop_token_ids=()):
    """Logits after bias, penalties and stop ids held back, given the tokens so far."""
    logits = logits.astype(np.float32).copy()
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += np.float32(bias)
    for token_id in {*prompt, *outputs}:
        penalty = np.float32(params.repetition_penalty)
        positive = logits[token_id] > 0
        logits[token_id] = logits[token_id] / penalty if positive else logits[token_id] * penalty
    for token_id in set(outputs):
        logits[token_id] -= np.float32(params.presence_penalty)
        logits[token_id] -= np.float32(params.frequency_penalty) * outputs.count(token_id)
    if len(outputs) < params.min_tokens:
        logits[[token_id for token_id in stop_token_ids if token_id < logits.size]] = -np.inf
    return logits


def numpy_draw(logits, prompt, outputs, params, sample_index=0):
    """The token that a request draws after `outputs`."""
    return numpy_sample(
        numpy_edited(logits, prompt, outputs, params, params.stop_token_ids),
        params.temperature,
        params.top_k or logits.size,
        params.top_p,
        params.min_p,
        params.seed,
        len(outputs),
        sample_index,
    )


def numpy_logprobs(logits):
    """log softmax over the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
