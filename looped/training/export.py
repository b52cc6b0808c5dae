"""Trained models as Hugging Face folders, which the engine loads and `looped convert` reads.

A backbone is written from memory. A stage on a frozen one changes a copy of the folder that it came
from, so that everything else in it stays as it was, to the bit.
"""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from looped.convert import LOOKAHEAD_FILE, ConvertedFolder, HuggingFaceFolder, export_checkpoint
from looped.convert.folder import COMPANION_FILES, DTYPES, INDEX_FILE, Tensor
from looped.convert.shards import write_shards
from looped.convert.source import is_finite
from looped.convert.staging import staged_folder
from looped.errors import LoopedError
from looped.models import GATE_BIAS, GATE_WEIGHT, family_of, num_parameters, parameter_shapes
from looped.models.looped_model import LoopedModel
from looped.models.parameters import stored_parameters

logger = logging.getLogger(__name__)

MAX_SHARD_BYTES = 5 * 10**9

WriteCompanions = Callable[[Path], None]
"""Puts a tokenizer and its settings into a folder."""


def export_model(
    model: LoopedModel,
    destination: Path,
    write_companions: WriteCompanions,
    *,
    dtype: str = "bfloat16",
    overwrite: bool = False,
) -> None:
    """Writes config.json, safetensors and the tokenizer's files; all of it or nothing.

    Args:
        model: of either form of layers.
        destination: folder to make.
        write_companions: is given the new folder.
        dtype: "float32" or "bfloat16", of the stored tensors.
        overwrite: replace `destination` if it is a model folder.

    Raises:
        LoopedError: the folder exists and may not be replaced, or a tensor is not finite; nothing
            has been written then.
    """
    config = replace(model.config, dtype=dtype)
    family = family_of(config)
    theirs = family.tensor_names.hugging_face_name
    arrays = {theirs(name): array for name, array in stored_parameters(model)}
    shapes = {theirs(name): shape for name, shape in parameter_shapes(config).items()}

    def stored(name: str) -> Tensor:
        tensor = np.asarray(arrays[name]).astype(DTYPES[dtype])
        _check_finite(name, tensor)
        return tensor

    with staged_folder(destination, source=None, overwrite=overwrite) as staged:
        write_shards(
            staged,
            shapes,
            DTYPES[dtype],
            stored,
            description="exporting",
            max_shard_bytes=MAX_SHARD_BYTES,
        )
        text = json.dumps(family.write_config(config), indent=2) + "\n"
        (staged / "config.json").write_text(text, encoding="utf-8")
        write_companions(staged)
    logger.info("wrote %s: %d parameters, %s", destination, num_parameters(config), dtype)


def companions_of(folder: Path) -> WriteCompanions:
    """Copies the tokenizer and settings of a model folder, not its look-ahead gate."""

    def write(destination: Path) -> None:
        for name in COMPANION_FILES:
            if name != LOOKAHEAD_FILE and (folder / name).exists():
                shutil.copy(folder / name, destination / name)

    return write


def export_changed(
    source: Path, destination: Path, change: Callable[[Path], None], *, overwrite: bool = False
) -> None:
    """Copies a model, changes the copy, and puts it in its place; all of it or nothing.

    Args:
        source: model folder of either form; the copy has Hugging Face's, the same configuration
            and tokenizer, and the same tensors, bit for bit. A look-ahead gate is left out.
        destination: folder to make.
        change: is given the copy, a folder beside the destination.
        overwrite: replace `destination` if it is a model folder.

    Raises:
        LoopedError: the folder exists and may not be replaced, or the source is not sound.
    """
    with staged_folder(destination, source=source, overwrite=overwrite) as staged:
        if ConvertedFolder.is_at(source):
            export_checkpoint(source, staged, overwrite=True)
            (staged / LOOKAHEAD_FILE).unlink(missing_ok=True)
        else:
            _copy_hugging_face(source, staged)
        change(staged)
    logger.info("wrote %s", destination)


def replace_exit_gate(folder: Path, weight: Tensor, bias: Tensor) -> None:
    """Puts other values into the exit gate of a Hugging Face folder, in the type it has there.

    Args:
        folder: to change; a file that holds none of the gate is not touched.
        weight: [E].
        bias: [].

    Raises:
        LoopedError: a value is not finite in that type.
    """
    opened_folder = HuggingFaceFolder(folder)
    theirs = family_of(opened_folder.config).tensor_names.hugging_face_name
    values = {theirs(GATE_WEIGHT): weight, theirs(GATE_BIAS): bias}
    for file in {opened_folder.tensors[name].file for name in values}:
        tensors = load_file(file)
        with safe_open(file, framework="numpy") as opened:
            metadata = opened.metadata()
        for name in values.keys() & tensors.keys():
            old = tensors[name]
            tensors[name] = values[name].astype(old.dtype).reshape(old.shape)
            _check_finite(name, tensors[name])
        save_file(tensors, file, metadata=metadata)
        file.chmod(0o644)


def _copy_hugging_face(source: Path, destination: Path) -> None:
    """Weights, configuration, tokenizer, and the code that a configuration may point to."""
    weights = {tensor.file for tensor in HuggingFaceFolder(source).tensors.values()}
    others = [source / "config.json", source / INDEX_FILE, *sorted(source.glob("*.py"))]
    for file in (*sorted(weights), *others):
        if file.exists():
            shutil.copyfile(file, destination / file.name)
    companions_of(source)(destination)


def _check_finite(name: str, tensor: Tensor) -> None:
    if not is_finite(tensor):
        raise LoopedError(
            f"{name} holds values that are not finite, so no model is written; start again with a "
            "lower --learning-rate"
        )
