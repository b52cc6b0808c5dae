"""The arms of the interference benchmark: which requests, under which policy."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the workload."""

    name: str
    policy: str
    """Policy of the engine."""
    has_decoders: bool
    has_prompts: bool
    title: str


ARMS = {
    arm.name: arm
    for arm in (
        Arm("D0", "mixed", True, False, "decoders alone"),
        Arm("P0", "mixed", False, True, "prompts alone"),
        Arm("A0", "atomic", True, True, "atomic"),
        Arm("A1", "separate", True, True, "separate"),
        Arm("A2", "mixed", True, True, "mixed"),
    )
}
"""By name, in the order of a forward round. Not to be written to."""

BASELINE = "D0"
"""Whose median gap the others' gaps are measured against."""
COMPARISONS = (("A2", "A0"), ("A2", "A1"), ("A1", "A0"), ("A0", "D0"), ("A1", "D0"), ("A2", "D0"))
"""Pairs of which ratios are reported: the first over the second."""


def round_order(process: int, round_index: int) -> tuple[str, ...]:
    """Arms of one round, every other one backwards, so that any two arms alternate as ABBA.

    Odd processes begin backwards: over two processes each arm runs as often early as late, also
    where the number of rounds is odd.
    """
    names = tuple(ARMS)
    return names if (process + round_index) % 2 == 0 else names[::-1]
