"""The `looped` command as tests call it: in this process, which has compiled steps at hand."""

import contextlib
import io
import logging
import sys
from dataclasses import dataclass
from unittest.mock import patch

from looped.cli import main


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    returncode: int
    stdout: str
    stderr: str


def looped(*arguments, stdin="", check=True):
    """Runs the command; its logging set-up is undone afterwards."""
    stdout, stderr = io.StringIO(), io.StringIO()
    logger = logging.getLogger("looped")
    before = (logger.handlers, logger.propagate, logger.level)
    returncode = 0
    with (
        patch.object(sys, "argv", ["looped", *map(str, arguments)]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main()
        except SystemExit as exited:
            returncode = exited.code or 0
        finally:
            logger.handlers, logger.propagate, _ = before
            logger.setLevel(before[2])
    if check:
        assert returncode == 0, stderr.getvalue()
    return Done(returncode, stdout.getvalue(), stderr.getvalue())
