"""The writers by name."""

from typing import Any

from .admit import ADMIT
from .edit import EDIT
from .grow import GROW
from .writer import Writer

WRITERS: dict[str, Writer[Any]] = {"admit": ADMIT, "grow": GROW, "edit": EDIT}
"""All of them. Not to be written to."""
