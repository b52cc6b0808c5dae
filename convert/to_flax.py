"""`looped convert`: a Hugging Face checkpoint becomes a converted folder."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from looped.errors import LoopedError, UsageError
from looped.model_files import read_json
from looped.models import parameter_shapes
from looped.progress import progress_bars, track

from .folder import (
    COMPANION_FILES,
    DTYPES,
    MANIFEST_FILE,
    ConvertedFolder,
    Manifest,
    Tensor,
    checksum,
    write_parameters,
)
from .lookahead import check_lookahead_gate, read_lookahead_gate
from .source import HuggingFaceFolder, is_finite
from .staging import check_destination, staged_folder

logger = logging.getLogger(__name__)


def convert_checkpoint(
    source: Path,
    destination: Path,
    *,
    dtype: str | None = None,
    verify: bool = True,
    overwrite: bool = False,
    source_name: str | None = None,
) -> Manifest:
    """Converts a checkpoint folder, tensor by tensor; writes all of it or nothing.

    Args:
        source: Hugging Face folder with config.json and safetensors.
        destination: folder to make.
        dtype: "float32" or "bfloat16"; None keeps the source's, and takes float32 for float16,
            which holds its values exactly.
        verify: read the result back and compare every tensor bit for bit.
        overwrite: replace `destination` if it is a model folder.
        source_name: what the manifest calls the source, when not the folder (a hub id).

    Returns:
        The manifest that was written.

    Raises:
        LoopedError: with all reasons, when the source is refused; nothing has been written then.
    """
    check_destination(destination, source=source, overwrite=overwrite)
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    if ConvertedFolder.is_at(source):
        raise LoopedError(f"{source} is converted already; use it as it is, or export it")
    checkpoint = HuggingFaceFolder(source)
    checkpoint.check_values()
    gate = read_lookahead_gate(source, checkpoint.config)
    dtype = dtype or ("bfloat16" if checkpoint.dtype == "bfloat16" else "float32")
    with (
        staged_folder(destination, source=source, overwrite=overwrite) as staged,
        _cast_tensors(checkpoint, DTYPES[dtype], scratch=staged / "scratch") as tensors,
    ):
        manifest = Manifest.create(
            source=source_name or str(source),
            source_dtype=checkpoint.dtype,
            dtype=dtype,
            checksums={name: checksum(tensor) for name, tensor in tensors.items()},
            lookahead_gate=gate.checksums if gate else {},
        )
        with progress_bars() as progress:
            progress.add_task("writing", total=None)
            write_parameters(staged, tensors)
        _write_config(source, staged, dtype)
        for name in COMPANION_FILES:
            if (source / name).exists():
                shutil.copy(source / name, staged / name)
        manifest.write(staged / MANIFEST_FILE)
        if verify:
            _verify(staged, tensors)
            check_lookahead_gate(ConvertedFolder(staged))
    logger.info(
        "converted %s (%s) to %s (%s)", manifest.source, manifest.source_dtype, destination, dtype
    )
    return manifest


@contextmanager
def _cast_tensors(
    checkpoint: HuggingFaceFolder, dtype: np.dtype[Any], *, scratch: Path
) -> Iterator[dict[str, Tensor]]:
    """All tensors in the wanted type, in one mapped file so that they take no anonymous memory."""
    shapes = parameter_shapes(checkpoint.config)
    sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, shape in shapes.items()}
    tensors: dict[str, Tensor] = {}
    overflows = []
    # Claimed at once: a mapped file that meets a full disk later is a bus error, not an exception.
    with scratch.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, sum(sizes.values()))
    # Not np.memmap: Orbax has no handler for that subclass.
    buffer = np.asarray(np.memmap(scratch, np.uint8, "r+"))
    offset = 0
    for name in track(list(shapes), "reading"):
        tensor = buffer[offset : offset + sizes[name]].view(dtype).reshape(shapes[name])
        offset += sizes[name]
        with np.errstate(over="ignore"):
            tensor[...] = checkpoint.read(name)
        if not is_finite(tensor):
            overflows.append(name)
        tensors[name] = tensor
    if overflows:
        more = f" and {len(overflows) - 1} more" if len(overflows) > 1 else ""
        raise LoopedError(f"{checkpoint.path}: {dtype.name} overflows in {overflows[0]}{more}")
    try:
        yield tensors
    finally:
        scratch.unlink()


def _write_config(source: Path, staged: Path, dtype: str) -> None:
    """config.json as it was, but for the type of the tensors."""
    values = read_json(source / "config.json")
    for key in {"dtype", "torch_dtype"} & values.keys() or {"torch_dtype"}:
        values[key] = dtype
    (staged / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _verify(folder: Path, tensors: dict[str, Tensor]) -> None:
    written = ConvertedFolder(folder)
    for name in track(list(tensors), "verifying"):
        if not np.array_equal(written.read(name).view(np.uint8), tensors[name].view(np.uint8)):
            raise LoopedError(f"{name} reads back differently than it was written: check the disk")
