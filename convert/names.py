"""Tensor names: ours say what a tensor does, Hugging Face's say where it came from.

`post_attention_layernorm` is the norm before the MLP, despite its name; the two norms with `_2`
follow attention and MLP.
"""

import re

_OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "exit_gate.weight": "model.early_exit_gate.weight",
    "exit_gate.bias": "model.early_exit_gate.bias",
    "lm_head.weight": "lm_head.weight",
}

_LAYER = {
    "attention_input_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "attention_output_norm.weight": "input_layernorm_2.weight",
    "mlp_input_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
    "mlp_output_norm.weight": "post_attention_layernorm_2.weight",
}


def hugging_face_name(name: str) -> str:
    """Hugging Face's name of a tensor of our tree: `layers.3.mlp.up.weight` and the like."""
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
        return f"model.layers.{match[1]}.{_LAYER[match[2]]}"
    return _OUTER[name]


def layer_index(hugging_face_name: str) -> int | None:
    """Which layer a Hugging Face tensor belongs to; None for the tensors outside the layers."""
    match = re.match(r"model\.layers\.(\d+)\.", hugging_face_name)
    return int(match[1]) if match else None
