"""`wavefront`: `mixed` with several chunks of one prompt under way, at successive depths.

A chunk may run a depth as soon as the chunks before it have, so a prompt of n chunks needs
n + P - 1 launches instead of n * P: while one chunk runs depth 1, the next runs depth 0, and so on.
It pays where launches have room for more prompt rows than one chunk, and nobody else has a use for
them. What is computed stays the same, row by row.
"""

from ..errors import ConfigError
from ..request import Request, Stage
from ..view import Selection, View
from .mixing import choose_mixing
from .packing import pack_whole
from .policy import Policy

ONE_A_DEPTH = 1_000
"""More than the depths of any model, and the Scheduler has one item a depth under way at most."""


def take(view: View, stage: Stage) -> Selection:
    """Decode rows, then the prompt items that fit beside them."""
    decodes = view.decode_items[: view.max_decode_rows]
    num_rows = view.max_num_batched_tokens - len(decodes)
    return Selection(decodes + pack_whole(view.prompt_items, num_rows))


def as_many_as_planned(view: View, request: Request) -> int:
    """The whole of max_window, which every answer is clamped to."""
    return ONE_A_DEPTH


def wavefront_policy(window: int | None = None) -> Policy:
    """Return the policy.

    Args:
        window: most chunks of one prompt under way at once, >= 1. None: one a depth, P of them.

    Raises:
        ConfigError: a window below 1.
    """
    if window is not None and window < 1:
        raise ConfigError(f"window must be >= 1, got {window}")
    return Policy(
        name="wavefront",
        choose=choose_mixing,
        take=take,
        window=as_many_as_planned,
        max_window=ONE_A_DEPTH if window is None else window,
        is_mixing=True,
    )


def wavefront_from_options(*, window: str | None = None) -> Policy:
    """Return the policy for what a user typed.

    Args:
        window: most chunks of one prompt under way at once.

    Raises:
        ConfigError: a window that is no whole number above 0.
    """
    if window is None:
        return wavefront_policy()
    if not window.isdecimal():
        raise ConfigError(f"window must be a whole number of chunks, got {window!r}")
    return wavefront_policy(int(window))
