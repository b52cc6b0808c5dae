"""Text files of a model folder, and the note that Git LFS leaves in place of a file."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import ForeignCheckpointError, LoopedError, brief

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a pointer begins: three lines that say which file would stand there."""


def read_text(path: Path) -> str:
    """A UTF-8 file's text; LoopedError if it is missing, cannot be read or is a pointer."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LoopedError(f"{path} is missing") from None
    except OSError as error:
        raise LoopedError(f"{path} cannot be read: {error.strerror}") from None
    if data.startswith(LFS_POINTER):
        check_pointers([path])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LoopedError(f"{path} is not text in UTF-8: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object; LoopedError, as of `read_text`, or if it is malformed or no object."""
    text = read_text(path)
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise LoopedError(f"{path} is not valid JSON: {brief(error, 100)}") from None
    if not isinstance(values, dict):
        raise LoopedError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def check_pointers(paths: Iterable[Path]) -> None:
    """ForeignCheckpointError if any of these files is a Git LFS pointer; what is missing is not."""
    pointers = [path for path in paths if _is_pointer(path)]
    if not pointers:
        return
    first = pointers[0]
    what = (
        f"a Git LFS pointer in place of {first.name}"
        if len(pointers) == 1
        else f"Git LFS pointers in place of {len(pointers)} files, such as {first.name}"
    )
    raise ForeignCheckpointError(f"{what}: run `git lfs pull` in {first.parent}")


def _is_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:  # whoever needs the file says why it cannot be read
        return False
