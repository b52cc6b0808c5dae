"""Logging: `looped`'s messages go to stderr, with one letter for the level."""

import logging
import sys


def configure_logging(level: int) -> None:
    """Sends the package's messages from `level` on to stderr, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname).1s %(message)s"))
    logger = logging.getLogger("looped")
    logger.handlers = [handler]
    logger.propagate = False  # absl gives the root logger a handler of its own
    logger.setLevel(level)
