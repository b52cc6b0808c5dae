"""SHA-256 of what a run is made from, so that it is resumed with the same."""

import hashlib
from pathlib import Path

from looped.convert import ConvertedFolder, HuggingFaceFolder
from looped.convert.folder import MANIFEST_FILE


def file_digest(file: Path) -> str:
    """SHA-256 of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def model_digests(folder: Path) -> dict[str, str]:
    """Of a model's configuration and of all its weights.

    A converted folder's manifest stands for its weights: it holds every tensor's own checksum.
    """
    return {
        "config_sha256": file_digest(folder / "config.json"),
        "weights_sha256": text_digest("".join(map(file_digest, _weight_files(folder)))),
    }


def _weight_files(folder: Path) -> list[Path]:
    if ConvertedFolder.is_at(folder):
        return [folder / MANIFEST_FILE]
    return sorted({tensor.file for tensor in HuggingFaceFolder(folder).tensors.values()})
