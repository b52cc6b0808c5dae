"""The names are written out here a second time: a swap would survive every round trip."""

import pytest
from checkpoints import published_config, small_config, tensor_shapes

from looped.models import parameter_shapes, parse_config
from looped.models.ouro_family import TENSOR_NAMES

PAIRS = {
    "embedding.weight": "model.embed_tokens.weight",
    "layers.7.attention_input_norm.weight": "model.layers.7.input_layernorm.weight",
    "layers.7.attention.query.weight": "model.layers.7.self_attn.q_proj.weight",
    "layers.7.attention.key.weight": "model.layers.7.self_attn.k_proj.weight",
    "layers.7.attention.value.weight": "model.layers.7.self_attn.v_proj.weight",
    "layers.7.attention.output.weight": "model.layers.7.self_attn.o_proj.weight",
    "layers.7.attention_output_norm.weight": "model.layers.7.input_layernorm_2.weight",
    "layers.7.mlp_input_norm.weight": "model.layers.7.post_attention_layernorm.weight",
    "layers.7.mlp.gate.weight": "model.layers.7.mlp.gate_proj.weight",
    "layers.7.mlp.up.weight": "model.layers.7.mlp.up_proj.weight",
    "layers.7.mlp.down.weight": "model.layers.7.mlp.down_proj.weight",
    "layers.7.mlp_output_norm.weight": "model.layers.7.post_attention_layernorm_2.weight",
    "final_norm.weight": "model.norm.weight",
    "exit_gate.weight": "model.early_exit_gate.weight",
    "exit_gate.bias": "model.early_exit_gate.bias",
    "lm_head.weight": "lm_head.weight",
}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.items())
def test_every_tensor_has_the_name_that_its_role_has_in_ouro(ours: str, theirs: str) -> None:
    assert TENSOR_NAMES.hugging_face_name(ours) == theirs


@pytest.mark.parametrize("values", [small_config(), published_config(24), published_config(48)])
def test_the_whole_tree_is_named_and_shaped_as_hugging_face_does(values: dict) -> None:
    shapes = parameter_shapes(parse_config(values))
    assert {
        TENSOR_NAMES.hugging_face_name(name): shape for name, shape in shapes.items()
    } == tensor_shapes(values)


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("model.layers.0.input_layernorm.weight", 0),
        ("model.layers.47.mlp.up_proj.weight", 47),
        ("model.norm.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_a_layer_is_read_off_the_name(name: str, index: int | None) -> None:
    assert TENSOR_NAMES.layer_index(name) == index
