"""Names that mark the parts of a compiled step in the metadata of its operations.

They cost nothing when a step runs, and change nothing in it; `looped.aot` and profilers find the
parts by them. A path reads `STAGE/layers/layer_3/attention/…`; the stage is the kind of launch.
"""

LAYERS = "layers"
"""All L layers, the attention and the write below among them."""
KV_WRITE = "kv_write"
"""A layer's keys and values on their way into the pool."""
ATTENTION = "attention"
"""A layer's attention over the pool."""
EMBED = "embed"
MLP = "mlp"
GATE = "gate"
"""The exit gate, and the survival products."""
LM_HEAD = "lm_head"
SAMPLER = "sampler"
"""Edits of the logits and the draw."""


def layer_scope(index: int) -> str:
    """One layer, where layers are unrolled. In a scan one code is every layer's."""
    return f"layer_{index}"
