"""The trained look-ahead gate that a model folder may hold beside its weights.

A file of its own, because the checkpoint's form has no place for it: `lookahead_gate.safetensors`
with `weight` [P - 2, E] and `bias` [P - 2], float32. Row r - 1 serves after loop r: the sigmoid of
weight . normed row + bias says whether the token leaves after loop r + 1. Loops P - 1 and P decide
nothing: what follows loop P - 1 is the last loop in any case.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from looped.config import ModelConfig
from looped.errors import LoopedError, brief

from .folder import LOOKAHEAD_FILE, MANIFEST_FILE, ConvertedFolder, Manifest, checksum


@dataclass(frozen=True, eq=False)
class LookaheadGate:
    """A linear head a loop, float32."""

    weight: np.ndarray[Any, np.dtype[np.float32]]
    """[P - 2, E]."""
    bias: np.ndarray[Any, np.dtype[np.float32]]
    """[P - 2]."""

    @property
    def tensors(self) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """By their names in the file."""
        return {"weight": self.weight, "bias": self.bias}

    @property
    def checksums(self) -> dict[str, str]:
        """SHA-256 of each tensor, by its name in the file."""
        return {name: checksum(tensor) for name, tensor in self.tensors.items()}


def read_lookahead_gate(folder: Path, config: ModelConfig) -> LookaheadGate | None:
    """The folder's look-ahead gate; None where there is none.

    Args:
        folder: a model folder of either form.
        config: the folder's own, with the P that the gate was trained for.

    Raises:
        LoopedError: the file is not such a gate, or one of another model.
    """
    path = folder / LOOKAHEAD_FILE
    if not path.exists():
        return None
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise LoopedError(
            f"{path} cannot be read ({brief(error, 100)}); train the gate again"
        ) from error
    num_heads = max(0, config.num_loops - 2)
    expected = {
        "weight": f"float32 {(num_heads, config.hidden_size)}",
        "bias": f"float32 {(num_heads,)}",
    }
    found = {name: f"{tensor.dtype} {tensor.shape}" for name, tensor in tensors.items()}
    if found != expected:
        raise LoopedError(
            f"{path}: expected {_listed(expected)} for this model's P = {config.num_loops}, got "
            f"{_listed(found)}; it belongs to another model"
        )
    bad = [name for name, tensor in tensors.items() if not np.isfinite(tensor).all()]
    if bad:
        raise LoopedError(f"{path}: {', '.join(bad)} holds values that are not finite")
    return LookaheadGate(tensors["weight"], tensors["bias"])


def write_lookahead_gate(folder: Path, gate: LookaheadGate) -> None:
    """Puts a gate beside a model's weights, in place of an older one; a manifest learns of it."""
    scratch = folder / f".{LOOKAHEAD_FILE}.partial"
    save_file(gate.tensors, scratch)
    scratch.chmod(0o644)
    scratch.replace(folder / LOOKAHEAD_FILE)
    if ConvertedFolder.is_at(folder):
        path = folder / MANIFEST_FILE
        manifest = replace(Manifest.from_file(path), lookahead_gate=gate.checksums)
        scratch = folder / f".{MANIFEST_FILE}.partial"
        manifest.write(scratch)
        scratch.replace(path)


def check_lookahead_gate(folder: ConvertedFolder) -> None:
    """LoopedError where a converted folder's gate is not what its manifest says."""
    gate = read_lookahead_gate(folder.path, folder.config)
    if (gate.checksums if gate else {}) != folder.manifest.lookahead_gate:
        raise LoopedError(
            f"{folder.path}: {LOOKAHEAD_FILE} does not match its checksums in {MANIFEST_FILE}; "
            "convert the checkpoint again, or train the gate again"
        )


def _listed(tensors: dict[str, str]) -> str:
    return ", ".join(f"{name} {form}" for name, form in sorted(tensors.items())) or "nothing"
