"""The three ways in which scheduling can go wrong, told apart by whose mistake it is.

`looped` turns the first two into one-line messages for its user; so does its command line with the
third, which from Python is a bug report with its traceback.
"""


class RequestError(ValueError):
    """A request that cannot be served, refused at the door: the queue is as it was."""


class ConfigError(ValueError):
    """A scheduler configuration that contradicts itself."""


class InterfaceError(RuntimeError):
    """A policy, an executor or the scheduler broke the contract between them: a bug in code."""
