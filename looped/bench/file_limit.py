"""How many connections a client may have: an open loop needs one for every request under way."""

import logging
import resource

logger = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raises this process's limit of open files to what it may be.

    Else a client with 1,024 requests under way would report failures of its own as the server's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS names a hard limit that it does not grant
        logger.warning("open files stay limited to %d: %s", soft, error)
