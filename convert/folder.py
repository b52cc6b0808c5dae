"""The converted form on disk: an Orbax checkpoint, the configuration, the tokenizer, a manifest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
from flax.traverse_util import flatten_dict, unflatten_dict

from looped.errors import LoopedError, brief
from looped.model_files import check_pointers, read_json
from looped.models import parameter_shapes, read_config

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
INDEX_FILE = "model.safetensors.index.json"
PARAMETERS_FOLDER = "parameters"
LOOKAHEAD_FILE = "lookahead_gate.safetensors"
"""Optional, in both forms of a folder; see `lookahead`."""

# What a model folder holds beside weights and config.json; copied as it is, where it exists.
COMPANION_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    LOOKAHEAD_FILE,
)

Tensor = np.ndarray[Any, Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Types that a converted folder may have."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Where a converted folder came from and what its tensors must hash to."""

    format_version: int
    source: str
    """Folder or hub id that was converted."""
    source_dtype: str
    dtype: str
    """The one type of all tensors."""
    tool_version: str
    checksums: Mapping[str, str]
    """SHA-256 of each tensor's bytes (C order, little endian), by its name in the tree."""
    lookahead_gate: Mapping[str, str] = field(default_factory=dict)
    """The same of the look-ahead gate's tensors; empty without one."""

    @classmethod
    def create(
        cls,
        *,
        source: str,
        source_dtype: str,
        dtype: str,
        checksums: dict[str, str],
        lookahead_gate: dict[str, str] | None = None,
    ) -> Self:
        """A manifest of the present format and version of this package."""
        return cls(
            format_version=FORMAT_VERSION,
            source=source,
            source_dtype=source_dtype,
            dtype=dtype,
            tool_version=version("looped"),
            checksums=checksums,
            lookahead_gate=lookahead_gate or {},
        )

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Reads a manifest; LoopedError if it is not one or of a later format."""
        values = read_json(path)
        if values.get("format_version") != FORMAT_VERSION:
            raise LoopedError(
                f"{path}: format_version is {values.get('format_version')!r}, this version of "
                f"looped reads {FORMAT_VERSION}; convert the checkpoint again"
            )
        values.setdefault("lookahead_gate", {})  # younger than the format
        is_complete = values.keys() == {known.name for known in fields(cls)}
        is_sound = (
            is_complete
            and isinstance(values["checksums"], dict)
            and isinstance(values["lookahead_gate"], dict)
            and values["dtype"] in ("float32", "bfloat16")
        )
        if not is_sound:
            raise LoopedError(f"{path} is damaged; convert the checkpoint again")
        return cls(**values)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


class ConvertedFolder:
    """A finished conversion, opened for reading.

    Raises:
        LoopedError: when a part of it is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = Manifest.from_file(path / MANIFEST_FILE)
        if not (path / PARAMETERS_FOLDER).is_dir():
            raise LoopedError(
                f"{path} has a manifest but no {PARAMETERS_FOLDER}; convert the checkpoint again"
            )
        check_pointers(sorted((path / PARAMETERS_FOLDER).rglob("*")))
        self.config = read_config(path / "config.json")
        self.shapes = parameter_shapes(self.config)
        if self.shapes.keys() != self.manifest.checksums.keys():
            raise LoopedError(
                f"{path}: config.json describes other tensors than {MANIFEST_FILE} lists; "
                "convert the checkpoint again"
            )
        self._group: dict[str, Tensor] = {}

    @staticmethod
    def is_at(path: Path) -> bool:
        """Whether the folder holds a conversion (and not a Hugging Face checkpoint)."""
        return (path / MANIFEST_FILE).exists()

    @property
    def dtype(self) -> str:
        return self.manifest.dtype

    def read(self, name: str) -> Tensor:
        """One stored tensor. A layer's tensors are fetched together and kept until read."""
        if name not in self._group:
            prefix = _group_of(name)
            self._group = self._restore([key for key in self.shapes if _group_of(key) == prefix])
        tensor = self._group.pop(name)
        # What Orbax does not find, it fills with the placeholder, a number.
        found = f"{tensor.dtype} {tensor.shape}" if isinstance(tensor, np.ndarray) else "nothing"
        if found != f"{self.dtype} {self.shapes[name]}":
            raise LoopedError(
                f"{self.path}: {name} is stored as {found}, expected {self.dtype} "
                f"{self.shapes[name]}; the folder is damaged, convert the checkpoint again"
            )
        return tensor

    def _restore(self, names: list[str]) -> dict[str, Tensor]:
        path = (self.path / PARAMETERS_FOLDER).resolve()
        item = _nested(dict.fromkeys(names, 0))
        arguments = _nested({name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names})
        try:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                tree = checkpointer.restore(
                    path,
                    args=ocp.args.PyTreeRestore(
                        item=item, restore_args=arguments, partial_restore=True
                    ),
                )
        except (ValueError, FileNotFoundError, KeyError) as error:
            raise LoopedError(
                f"{path} cannot be read ({type(error).__name__}: {brief(error, 100)}); "
                "convert the checkpoint again"
            ) from error
        return flatten_dict(tree, sep=".")


def write_parameters(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes the Orbax checkpoint of a converted folder: a nested tree, uncompressed.

    Random-looking mantissas do not compress, and without compression tensors can be mapped.
    """
    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(
            (folder / PARAMETERS_FOLDER).resolve(), args=ocp.args.PyTreeSave(_nested(tensors))
        )


def checksum(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(tensor).view(np.uint8).data).hexdigest()


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    return unflatten_dict(dict(flat), sep=".")


def _group_of(name: str) -> tuple[str, ...]:
    return tuple(name.split(".")[:2])
