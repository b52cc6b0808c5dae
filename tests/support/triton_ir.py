"""Bounds of the offsets that a Triton kernel adds to a pointer, read in its IR.

A forward pass over the text: every integer has the largest value that it can take, computed
exactly, and the knowledge whether a 32-bit operation on the way to it would have wrapped.
"""

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    largest: int
    is_wrapped: bool = False
    """Whether it, or something that it was computed from, did not fit its type."""


ARITHMETIC = {
    "arith.addi": operator.add,
    "arith.muli": operator.mul,
    "arith.divsi": operator.floordiv,
    # The largest remainder of numbers up to a bound.
    "arith.remsi": lambda bound, divisor: min(bound, divisor - 1),
}
SAME = {"arith.extsi", "tt.splat", "tt.broadcast", "tt.expand_dims"}


def offsets_into(
    ttir: str, parameter: str, *, loads: Mapping[str, int], programs: int, positions: int
) -> list[Bound]:
    """Every offset that is added to a pointer parameter, or to a pointer made of it.

    Args:
        loads: the largest value behind each pointer parameter that indices are loaded from.
        programs: the largest program id along each axis.
        positions: the largest value of a loop's counter.

    Raises:
        KeyError: an offset comes from an operation that is not known here.
    """
    bounds: dict[str, Bound] = {}
    roots = {f"%{name}": name for name in re.findall(r"%(\w+): !tt.ptr", ttir)}
    found = []
    for line in ttir.splitlines():
        text = line.split(" loc(")[0]
        if loop := re.search(r"scf\.for (%\w+) =", text):
            bounds[loop[1]] = Bound(positions)
            continue
        if (match := re.match(r"\s*(%\w+) = ([\w.]+) (.*)", text)) is None:
            continue
        result, operation, rest = match.groups()
        operands = re.findall(r"%\w+", rest)
        root = roots.get(operands[0]) if operands else None
        # Regions beside each other use a name again: what it was is forgotten.
        bound = None
        if operation == "tt.addptr" and root == parameter:
            found.append(bounds[operands[1]])
        elif operation == "tt.load" and root in loads:
            bound = Bound(loads[root])
        elif operation == "tt.get_program_id":
            bound = Bound(programs)
        elif operation in SAME:
            bound = bounds.get(operands[0])
        else:
            bound = _computed(operation, rest, [bounds.get(name) for name in operands])
        for known, value in (
            (bounds, bound),
            (roots, root if operation in ("tt.addptr", *SAME) else None),
        ):
            known.pop(result, None)
            if value is not None:
                known[result] = value
    return found


def _computed(operation: str, rest: str, inputs: Sequence[Bound | None]) -> Bound | None:
    """Bound of a constant, a range or a sum of what is known; None for anything else."""
    if operation == "tt.make_range":
        return Bound(int(re.search(r"end = (\d+)", rest)[1]) - 1)
    if operation == "arith.constant":
        number = re.match(r"(?:dense<)?(-?\d+)>? :", rest)
        return Bound(int(number[1])) if number else None
    if operation not in ARITHMETIC or None in inputs:
        return None
    largest = ARITHMETIC[operation](*(one.largest for one in inputs))
    limit = 2 ** (int(re.search(r"i(\d+)>?$", rest)[1]) - 1)
    return Bound(largest, largest >= limit or any(one.is_wrapped for one in inputs))
