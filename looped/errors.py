"""The one exception that stands for a user's mistake.

The command line prints it as one line without a traceback. Our own invariants are asserted
instead, and a failure of the machine keeps its own exception type.
"""


class LoopedError(Exception):
    """Something the user can mend; the message says what was expected, what came, what to do.

    Attributes:
        exit_code: what a command exits with: 1, or 2 for a mistake in how it was called.
    """

    exit_code = 1


class UsageError(LoopedError):
    """Arguments that contradict each other or are out of range; exit code 2."""

    exit_code = 2


class ForeignCheckpointError(LoopedError):
    """Files of another kind than is served: a quantised checkpoint, another family, a pointer.

    The first words say what it is; what else is wrong with such files is of no interest.
    """


def brief(text: object, limit: int = 60) -> str:
    """Somebody else's words for a message of ours: in one line, and cut where they are long."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
