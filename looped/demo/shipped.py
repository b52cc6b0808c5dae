"""The trained demo model that is installed with looped, used where no other is named."""

from importlib.resources import files
from pathlib import Path

from looped.errors import LoopedError

NAME = "looped-demo"
"""What a server calls it."""


def shipped_model() -> Path:
    """Its folder, in Hugging Face form.

    Raises:
        LoopedError: this installation has none.
    """
    folder = Path(str(files(__package__) / "model"))
    if not (folder / "config.json").is_file():
        raise LoopedError(
            f"no --model was given, and there is no demo model in {folder}; name a model with "
            "--model, or train one: looped train pretrain --task demo --out DIR makes DIR/model"
        )
    return folder
