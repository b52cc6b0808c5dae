"""Looped models in Flax NNX, one family after another, and the parameter tree they share.

registry        the families that are served; from a config.json to its family
family          what everything else asks of a family
config_keys     reading a config.json so that no key goes unnoticed; `quantisation`: what it refuses
tensor_names    a family's naming table, from our tensors to Hugging Face's
looped_model    what everything else asks of a model in memory
parameters      from tensors to a model in memory, and back
layers          L layers as a list or as one; `scopes`: names of a compiled step's parts
ouro            Ouro's model; `ouro_family`: its configuration and tensors

What is imported here needs no JAX; models themselves are imported from their modules.
"""

from .family import Family
from .registry import (
    DEFAULT_MODEL_TYPE,
    FAMILIES,
    family_of,
    num_parameters,
    parameter_shapes,
    parse_config,
    read_config,
)
from .tensor_names import EMBEDDING, GATE_BIAS, GATE_WEIGHT, LM_HEAD, TensorNames

__all__ = [
    "DEFAULT_MODEL_TYPE",
    "EMBEDDING",
    "FAMILIES",
    "GATE_BIAS",
    "GATE_WEIGHT",
    "LM_HEAD",
    "Family",
    "TensorNames",
    "family_of",
    "num_parameters",
    "parameter_shapes",
    "parse_config",
    "read_config",
]
