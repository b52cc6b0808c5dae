"""`looped inspect`: what a model folder holds, without loading it."""

from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from looped.config import ModelConfig

from .folder import ConvertedFolder
from .lookahead import read_lookahead_gate
from .source import HuggingFaceFolder

BYTES_PER_VALUE = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Configuration, tensors and sizes of one model folder."""

    form: str
    """"converted" or "hugging_face"."""
    config: ModelConfig
    dtype: str
    """Type of the stored tensors; for a mixture, the narrowest that holds all."""
    tensors: dict[str, tuple[int, ...]]
    """Shape by name, in our names."""
    lookahead_gate: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The same of the look-ahead gate beside the weights; empty without one."""

    @property
    def num_parameters(self) -> int:
        return sum(prod(shape) for shape in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all parameters in `dtype`."""
        return self.num_parameters * BYTES_PER_VALUE[self.dtype]

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of one token's keys and values over all planes, cached in `dtype`."""
        return self.config.kv_values_per_token() * BYTES_PER_VALUE[dtype]

    def to_json(self) -> dict[str, Any]:
        return {
            "form": self.form,
            "config": asdict(self.config),
            "dtype": self.dtype,
            "num_tensors": len(self.tensors),
            "num_parameters": self.num_parameters,
            "bytes": self.num_bytes,
            "kv_bytes_per_token": {
                dtype: self.kv_bytes_per_token(dtype) for dtype in ("float32", "bfloat16")
            },
            "tensors": {name: list(shape) for name, shape in self.tensors.items()},
            "lookahead_gate": {name: list(shape) for name, shape in self.lookahead_gate.items()},
        }


def inspect_folder(path: Path) -> Inspection:
    """Reads headers only; LoopedError, with all reasons, when the folder is not a sound model."""
    if ConvertedFolder.is_at(path):
        folder: ConvertedFolder | HuggingFaceFolder = ConvertedFolder(path)
        form = "converted"
    else:
        folder = HuggingFaceFolder(path)
        form = "hugging_face"
    gate = read_lookahead_gate(path, folder.config)
    gate_tensors = gate.tensors if gate else {}
    return Inspection(
        form=form,
        config=folder.config,
        dtype=folder.dtype,
        tensors=folder.shapes,
        lookahead_gate={name: tensor.shape for name, tensor in gate_tensors.items()},
    )
