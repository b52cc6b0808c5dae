"""Folders that hold something else than an unquantised checkpoint in safetensors, by their files.

What a configuration or tensors say is asked later; here no file is read beyond its first bytes.
"""

from pathlib import Path

from looped.errors import ForeignCheckpointError, LoopedError
from looped.model_files import check_pointers

from .folder import COMPANION_FILES, INDEX_FILE, MANIFEST_FILE

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
GGUF_MAGIC = b"GGUF"


def check_folder(path: Path) -> None:
    """Raises unless a path is a folder that may hold a model of either form.

    Raises:
        ForeignCheckpointError: a GGUF file or a folder of them, an adapter, or Git LFS pointers in
            place of configuration and tokenizer.
        LoopedError: the path is not a folder.
    """
    if not path.is_dir():
        if path.is_file() and _is_gguf(path):
            raise _gguf(path)
        raise LoopedError(f"{path} is not a folder; expected one with config.json in it")
    names = ("config.json", MANIFEST_FILE, INDEX_FILE, *COMPANION_FILES)
    check_pointers([path / name for name in names])
    for name in ADAPTER_FILES:
        if (path / name).exists():
            raise ForeignCheckpointError(
                f"a LoRA/PEFT adapter ({name}); merge it into its base model first: {path}"
            )
    if any(path.glob("*.gguf")) and not any(path.glob("*.safetensors")):
        raise _gguf(path)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _gguf(path: Path) -> ForeignCheckpointError:
    return ForeignCheckpointError(
        "a GGUF checkpoint (llama.cpp's form), and only safetensors in float32, float16 and "
        f"bfloat16 are served; take the checkpoint that it was made from: {path}"
    )
