"""A random model in the demo's form, small enough to compile in seconds."""

from dataclasses import replace

import jax
import numpy as np

from looped.demo.tokenizer import demo_tokenizer, write_tokenizer
from looped.training.config import ShapeConfig
from looped.training.export import export_model
from looped.training.initial import initial_model

TINY = ShapeConfig(hidden_size=32, num_heads=2, head_dim=16, intermediate_size=48)


def make_demo_model(folder, *, num_loops=4, seed=3):
    """Writes one in float32, whose gate spreads exits over all loops."""
    shape = replace(TINY, num_loops=num_loops)
    model = initial_model(shape.model_config(demo_tokenizer().get_vocab_size()), seed)
    weight = model.exit_gate.weight
    weight[...] = 2 * jax.random.normal(jax.random.key(seed), weight.shape) / np.sqrt(32)
    export_model(model, folder, write_tokenizer, dtype="float32")
    return folder
