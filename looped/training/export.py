"""Trained models as Hugging Face folders, which the engine loads and `looped convert` reads."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from looped.convert.folder import COMPANION_FILES, DTYPES
from looped.convert.names import hugging_face_name
from looped.convert.shards import write_shards
from looped.convert.staging import staged_folder
from looped.models import OuroModel, parameter_shapes, stored_parameters

logger = logging.getLogger(__name__)

MAX_SHARD_BYTES = 5 * 10**9

WriteCompanions = Callable[[Path], None]
"""Puts a tokenizer and its settings into a folder."""


def export_model(
    model: OuroModel,
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
        LoopedError: the folder exists and may not be replaced.
    """
    arrays = {hugging_face_name(name): array for name, array in stored_parameters(model)}
    shapes = {
        hugging_face_name(name): shape for name, shape in parameter_shapes(model.config).items()
    }
    with staged_folder(destination, source=None, overwrite=overwrite) as staged:
        write_shards(
            staged,
            shapes,
            DTYPES[dtype],
            lambda name: np.asarray(arrays[name]).astype(DTYPES[dtype]),
            description="exporting",
            max_shard_bytes=MAX_SHARD_BYTES,
        )
        config = replace(model.config, dtype=dtype).to_hugging_face()
        (staged / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        write_companions(staged)
    logger.info("wrote %s: %d parameters, %s", destination, model.config.num_parameters, dtype)


def companions_of(folder: Path) -> WriteCompanions:
    """Copies the tokenizer and settings of a model folder."""

    def write(destination: Path) -> None:
        for name in COMPANION_FILES:
            if (folder / name).exists():
                shutil.copy(folder / name, destination / name)

    return write
