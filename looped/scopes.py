"""Names that mark the parts of a compiled step in the metadata of its operations.

They cost nothing when a step runs; `looped.aot` and profilers find the parts by them.
"""

LAYERS = "layers"
"""All L layers, the attention and the write below among them."""
KV_WRITE = "kv_write"
"""A layer's keys and values on their way into the pool."""
ATTENTION = "attention"
"""A layer's attention over the pool."""
