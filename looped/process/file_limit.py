"""How many connections a process may have: server and load client need one for every request under
way."""

import errno
import logging
import resource
from collections.abc import Iterator

logger = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raises this process's limit of open files to what it may be.

    Else a server with 1,024 connections would take no more, and a client with as many requests
    under way would report failures of its own as the server's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS names a hard limit that it does not grant
        logger.warning("open files stay limited to %d: %s", soft, error)


def lacks_files(error: BaseException) -> bool:
    """Whether an error is due to too many open files, here or on this machine."""
    return any(
        isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it was raised from."""
    yield error
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for cause in (error.__cause__, *members):
        if cause is not None:
            yield from _causes(cause)
