"""A family's naming table: ours say what a tensor does, Hugging Face's say where it came from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

EMBEDDING = "embedding.weight"
LM_HEAD = "lm_head.weight"
GATE_WEIGHT, GATE_BIAS = "exit_gate.weight", "exit_gate.bias"
"""Tensors that have the same name and meaning in the tree of every family that has them."""


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """Hugging Face's name of each of our tensors, which also tells where a layer's number is."""

    outer: Mapping[str, str]
    """Of tensors outside the layers, by our whole name."""
    layer: Mapping[str, str]
    """Of a layer's tensors, by what follows `layers.N.` in ours and `model.layers.N.` in theirs."""

    def hugging_face_name(self, name: str) -> str:
        """Hugging Face's name of a tensor of our tree: `layers.3.mlp.up.weight` and the like."""
        if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
            return f"model.layers.{match[1]}.{self.layer[match[2]]}"
        return self.outer[name]

    def layer_index(self, hugging_face_name: str) -> int | None:
        """Which layer a Hugging Face tensor belongs to; None for the tensors outside the layers."""
        match = re.match(r"model\.layers\.(\d+)\.", hugging_face_name)
        return int(match[1]) if match else None
