"""From what a user calls a model, a folder or a hub id, to a folder on this machine."""

import re
from pathlib import Path

from looped.errors import LoopedError

from .folder import COMPANION_FILES
from .foreign import check_folder

WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "config.json")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model_folder(name: str) -> Path:
    """The folder of a model: `name` itself, or the download of that Hugging Face repository.

    Raises:
        LoopedError: in one line, when there is no such folder and the hub cannot give one, or it
            is recognisably no model's folder.
    """
    folder = _find_or_download(name)
    check_folder(folder)
    return folder


def _find_or_download(name: str) -> Path:
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise LoopedError(
            f"{name} begins with a home folder that is not there; write the folder's whole path"
        ) from None
    if path.exists():
        return path
    if not HUB_ID.fullmatch(name):
        raise LoopedError(f"{name} is neither a folder nor a hub id such as ByteDance/Ouro-1.4B")
    return _download(name)


def _download(hub_id: str) -> Path:
    # Imported here: a local folder needs no network library.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(hub_id, allow_patterns=[*WEIGHT_PATTERNS, *COMPANION_FILES])
    except LocalEntryNotFoundError:
        raise LoopedError(
            f"{hub_id} is not in the local cache and the hub cannot be reached; "
            "check the network or give a folder"
        ) from None
    except Exception as error:  # the HTTP library beneath, and its exceptions, differ by version
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LoopedError(f"{hub_id} cannot be downloaded: {reason}") from error
    return Path(folder)
