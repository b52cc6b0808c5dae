"""Hugging Face checkpoints of looped models to Flax parameters and back.

`source` opens a checkpoint and finds everything that is wrong with it, `folder` is the converted
form on disk, and `to_flax`, `to_hugging_face` and `inspection` are the three commands. `lookahead`
is the trained gate that a folder may hold beside its weights. Only safetensors is ever opened: a
pickle can run code.

`foreign` knows folders of other kinds by their files. Which tensors a model has and what Hugging
Face calls them, its family says. Of the engine, only the configuration, the families, errors and
progress bars are imported.
"""

from .folder import LOOKAHEAD_FILE, ConvertedFolder, Manifest
from .hub import resolve_model_folder
from .inspection import Inspection, inspect_folder
from .lookahead import LookaheadGate, read_lookahead_gate, write_lookahead_gate
from .source import HuggingFaceFolder
from .to_flax import convert_checkpoint
from .to_hugging_face import export_checkpoint

__all__ = [
    "LOOKAHEAD_FILE",
    "ConvertedFolder",
    "HuggingFaceFolder",
    "Inspection",
    "LookaheadGate",
    "Manifest",
    "convert_checkpoint",
    "export_checkpoint",
    "inspect_folder",
    "read_lookahead_gate",
    "resolve_model_folder",
    "write_lookahead_gate",
]
