"""Greedy generation with a jitted loop and a dense cache: what looped models do, without an engine.

    python examples/jitted_inference.py MODEL_FOLDER "a prompt"

One compiled call takes the prompt through all loops; a second one runs a token through all loops
and picks the next. Each loop keeps keys and values of its own (a plane), because the same layer
sees different rows in each loop.
"""

import argparse
import functools
from pathlib import Path

import jax
import jax.numpy as jnp

from looped import Tokenizer, load_folder


def attend(depth, positions, layer, query, key, value, cache):
    """Causal attention over one plane; cache: [2 P L N K D], keys and values."""
    cache = cache.at[:, depth, layer, positions].set(jnp.stack([key, value]))
    keys, values = cache[:, depth, layer].astype(jnp.float32)
    num_rows, num_heads, head_dim = query.shape
    query = query.reshape(num_rows, keys.shape[1], -1, head_dim).astype(jnp.float32)
    scores = jnp.einsum("tkgd,nkd->tkgn", query, keys, precision="highest") * head_dim**-0.5
    is_visible = jnp.arange(keys.shape[0]) <= positions[:, None, None, None]
    weights = jax.nn.softmax(jnp.where(is_visible, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("tkgn,nkd->tkgd", weights, values, precision="highest")
    return mixed.reshape(num_rows, num_heads, head_dim), cache


@functools.partial(jax.jit, donate_argnames="cache")
def next_token(model, token_ids, positions, cache):
    """Runs the given tokens through all loops; returns the most likely next id and the cache."""
    rows = model.embed(token_ids)
    for depth in range(model.config.num_loops):
        rows, cache = model.recurrent_pass(
            rows, positions, functools.partial(attend, depth, positions), cache
        )
    return model.logits(rows[-1:]).argmax(-1), cache


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompt")
    parser.add_argument("--max-tokens", type=int, default=32)
    arguments = parser.parse_args()

    loaded = load_folder(arguments.folder)
    tokenizer = Tokenizer.from_folder(arguments.folder)
    prompt = jnp.asarray(tokenizer.encode(arguments.prompt))
    config = loaded.config
    length = prompt.size + arguments.max_tokens
    planes = (2, config.num_loops, config.num_layers, length, config.num_kv_heads, config.head_dim)
    cache = jnp.zeros(planes, loaded.dtype)

    token, cache = next_token(loaded.model, prompt, jnp.arange(prompt.size), cache)
    token_ids = [int(token[0])]
    while len(token_ids) < arguments.max_tokens and token_ids[-1] not in tokenizer.stop_token_ids:
        position = jnp.asarray([prompt.size + len(token_ids) - 1])
        token, cache = next_token(loaded.model, token, position, cache)
        token_ids.append(int(token[0]))
    print(tokenizer.decode(token_ids))


if __name__ == "__main__":
    main()
