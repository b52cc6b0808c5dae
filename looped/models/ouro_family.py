"""Ouro (https://arxiv.org/abs/2510.25741) as a family: configuration, tensors, names; no JAX."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from looped.config import ModelConfig

from .config_keys import ConfigKeys
from .family import Family
from .tensor_names import EMBEDDING, GATE_BIAS, GATE_WEIGHT, LM_HEAD, TensorNames

if TYPE_CHECKING:
    from .ouro import OuroModel

# Keys that change the arithmetic: the values that mean "what Ouro does". Anything else is refused.
SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False, None),
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False, None),
    "use_weighted_exit": (False, None),
    "early_exit_step": (None,),
}

# Fine-tunes add keys of their own under a prefix; they describe how the weights were trained.
IGNORED_PREFIXES = ("rltt_",)

# `post_attention_layernorm` is the norm before the MLP, despite its name; the two norms with `_2`
# follow attention and MLP.
TENSOR_NAMES = TensorNames(
    outer={
        EMBEDDING: "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        GATE_WEIGHT: "model.early_exit_gate.weight",
        GATE_BIAS: "model.early_exit_gate.bias",
        LM_HEAD: "lm_head.weight",
    },
    layer={
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
    },
)


class OuroFamily(Family):
    """Four norms a layer, the final norm after every loop, an exit gate, an untied LM head."""

    model_type = "ouro"
    architecture = "OuroForCausalLM"
    name = "Ouro"
    description = "ByteDance's Ouro and its fine-tunes"
    tensor_names = TENSOR_NAMES
    tensor_mark = "early_exit_gate"

    def read_config(self, keys: ConfigKeys) -> ModelConfig:
        for name, supported in SUPPORTED_VALUES.items():
            keys.check_supported(name, supported)
        keys.check_full_attention()
        fields = keys.decoder_fields()
        num_loops = keys.count("total_ut_steps")
        exit_threshold = keys.share("early_exit_threshold", 1.0)
        keys.raise_problems(IGNORED_PREFIXES)
        if fields["head_dim"] is None:
            fields["head_dim"] = fields["hidden_size"] // fields["num_heads"]
        return ModelConfig(
            model_type=self.model_type,
            num_loops=num_loops,
            exit_threshold=exit_threshold,
            **fields,
        )

    def write_config(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "hidden_act": "silu",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "total_ut_steps": config.num_loops,
            "early_exit_threshold": config.exit_threshold,
            "max_position_embeddings": config.max_position_embeddings,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_theta": config.rope_theta,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "eos_token_id": 0,
            "torch_dtype": config.dtype,
        }

    def parameter_shapes(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        width, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "attention_input_norm.weight": (width,),
            "attention.query.weight": (query, width),
            "attention.key.weight": (key, width),
            "attention.value.weight": (key, width),
            "attention.output.weight": (width, query),
            "attention_output_norm.weight": (width,),
            "mlp_input_norm.weight": (width,),
            "mlp.gate.weight": (inner, width),
            "mlp.up.weight": (inner, width),
            "mlp.down.weight": (width, inner),
            "mlp_output_norm.weight": (width,),
        }
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, width)}
        for index in range(config.num_layers):
            shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes | {
            "final_norm.weight": (width,),
            GATE_WEIGHT: (1, width),
            GATE_BIAS: (1,),
            LM_HEAD: (config.vocab_size, width),
        }

    def model_class(self) -> "type[OuroModel]":
        from .ouro import OuroModel

        return OuroModel
