"""Tensors under Hugging Face's names into safetensors files, with an index if there are several."""

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors.numpy import save_file

from looped.progress import track

from .folder import INDEX_FILE, Tensor


def write_shards(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype[np.generic],
    tensor_of: Callable[[str], Tensor],
    *,
    description: str,
    max_shard_bytes: int,
) -> None:
    """Writes model.safetensors, or numbered files and their index, holding one in memory.

    Args:
        folder: where to; it exists.
        shapes: of every tensor, by Hugging Face's name.
        dtype: the one type of all tensors.
        tensor_of: gives a tensor of that shape and type; asked once for each name.
        description: of the progress bar.
        max_shard_bytes: a model larger than this is split.
    """
    plan = split_state_dict_into_shards_factory(
        {name: prod(shape) * dtype.itemsize for name, shape in shapes.items()},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_bytes,
    )
    for file, names in track(list(plan.filename_to_tensors.items()), description):
        tensors = {name: tensor_of(name) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
