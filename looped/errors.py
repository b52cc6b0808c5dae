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
