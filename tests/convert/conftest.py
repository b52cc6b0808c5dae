"""What the tests of conversion share."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import Refuse, every_file

from looped.convert import convert_checkpoint
from looped.errors import LoopedError


@pytest.fixture
def refusal(tmp_path: Path) -> Refuse:
    """Converts a folder that must be refused; gives the message after seeing nothing written."""

    def refuse(source: Path, destination: Path | None = None, **options: Any) -> str:
        before = every_file(tmp_path)
        with pytest.raises(LoopedError) as caught:
            convert_checkpoint(source, destination or tmp_path / "converted", **options)
        assert every_file(tmp_path) == before
        message = str(caught.value)
        assert "\n" not in message
        return message

    return refuse
