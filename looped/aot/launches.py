"""What a compiled step launches, in order, and the bytes that each launch must move.

Bytes are those of a launch's arrays, each read or written once: of a slice or a gather what is
taken, of a scatter what is set. Caches may save some and a poor kernel may move more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from looped.models.scopes import ATTENTION, KV_WRITE, LAYERS

from .hlo import Computation, HloModule, Instruction

# Instructions that are no work on the device.
NO_LAUNCH = frozenset(
    {
        "add-dependency",
        "after-all",
        "async-done",
        "async-update",
        "bitcast",
        "constant",
        "copy-done",
        "fusion-done",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)

TAKES_PART = frozenset({"dynamic-slice", "gather", "slice"})
SETS_PART = frozenset({"dynamic-update-slice", "scatter"})

# A launch whose large arrays come from these alone moves data and computes nothing.
MOVES = frozenset(
    {
        "bitcast",
        "concatenate",
        "convert",
        "copy",
        "dynamic-slice",
        "get-tuple-element",
        "parameter",
        "reshape",
        "slice",
        "transpose",
        "tuple",
    }
)


class Part(IntEnum):
    """Which part of a step a launch belongs to."""

    OUTSIDE = 0
    """Before or after the layers."""
    LAYERS = 1
    KV_WRITE = 2
    ATTENTION = 3


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One kernel or copy."""

    name: str
    part: Part
    times: int
    """How often it runs in a step; loops whose rounds are data count once."""
    num_bytes: int
    """Read and written by one launch."""
    result: Instruction
    is_movement: bool
    """Whether it moves data and computes nothing."""


def launches_of(module: HloModule) -> list[Launch]:
    """All launches of a module. Of a conditional, the branch that launches most."""
    return list(_Walk(module).run(module.entry, 1, Part.OUTSIDE))


def count(launches: Iterable[Launch]) -> int:
    """How many launches there are, each as often as it runs."""
    return sum(launch.times for launch in launches)


class _Walk:
    def __init__(self, module: HloModule) -> None:
        self._module = module

    def run(self, computation: Computation, times: int, around: Part) -> Iterator[Launch]:
        for instruction in computation:
            if instruction.opcode in NO_LAUNCH:
                continue
            part = self._part(computation, instruction, around)
            if instruction.opcode == "while":
                times_inside = times * instruction.trip_count
                for name in instruction.called:
                    yield from self.run(self._computation(name), times_inside, part)
            elif instruction.opcode == "conditional":
                branches = [
                    list(self.run(self._computation(name), times, part))
                    for name in instruction.called
                ]
                yield from max(branches, key=lambda branch: (len(branch), _total_bytes(branch)))
            elif instruction.opcode in ("call", "async-start"):
                for name in instruction.called:
                    yield from self.run(self._computation(name), times, part)
            else:
                yield Launch(
                    name=instruction.name,
                    part=part,
                    times=times,
                    num_bytes=self._num_bytes(computation, instruction),
                    result=instruction,
                    is_movement=self._is_movement(instruction),
                )

    def _computation(self, name: str) -> Computation:
        return self._module.computations[name]

    def _part(self, computation: Computation, instruction: Instruction, around: Part) -> Part:
        """By the name of the JAX operation, the instruction's own or that of its neighbours."""
        if instruction.op_name:
            return max(around, part_of(instruction.op_name))
        if instruction.opcode == "fusion":
            inner = self._computation(instruction.called[0])
            if names := [each.op_name for each in inner if each.op_name]:
                return max(around, min(map(part_of, names)))
        users = computation.users[instruction.name]
        return self._part(computation, users[0], around) if users else around

    def _is_movement(self, instruction: Instruction) -> bool:
        if instruction.opcode != "fusion":
            return instruction.opcode in MOVES
        inner = self._computation(instruction.called[0])
        large = [each for each in inner if 2 * each.num_bytes >= instruction.num_bytes]
        return all(each.opcode in MOVES for each in large)

    def _num_bytes(self, computation: Computation, instruction: Instruction) -> int:
        if in_place := instruction.in_place_operands:
            # A kernel that sets a part: what it reads beside, and as much written.
            return 2 * sum(
                computation.operand(instruction, index).num_bytes
                for index in range(len(instruction.operands))
                if index not in in_place
            )
        return self._bytes_read(computation, instruction) + self._bytes_written(
            computation, instruction
        )

    def _bytes_read(self, computation: Computation, instruction: Instruction) -> int:
        total = 0
        for index, name in enumerate(instruction.operands):
            if name in instruction.operands[:index]:
                continue
            operand = computation.operand(instruction, index)
            if instruction.opcode == "fusion":
                inner = self._computation(instruction.called[0])
                total += self._bytes_used(inner, inner.parameters[index])
            else:
                total += _bytes_taken(instruction, index, operand)
        return total

    def _bytes_used(self, computation: Computation, value: Instruction) -> int:
        """Bytes of a value that its users look at."""
        total = 0
        for user in computation.users[value.name]:
            for index, name in enumerate(user.operands):
                if name != value.name:
                    continue
                if user.opcode in ("bitcast", "reshape"):
                    total += self._bytes_used(computation, user)
                elif user.opcode == "fusion":
                    inner = self._computation(user.called[0])
                    total += self._bytes_used(inner, inner.parameters[index])
                else:
                    total += _bytes_taken(user, index, value)
        return min(total, value.num_bytes)

    def _bytes_written(self, computation: Computation, instruction: Instruction) -> int:
        if instruction.opcode == "fusion":
            inner = self._computation(instruction.called[0])
            return self._bytes_written(inner, inner.root)
        if instruction.opcode in ("bitcast", "reshape"):
            return self._bytes_written(computation, computation.operand(instruction, 0))
        if instruction.opcode == "tuple":
            return sum(
                self._bytes_written(computation, computation.operand(instruction, index))
                for index in range(len(instruction.operands))
            )
        if instruction.opcode == "dynamic-update-slice":
            return computation.operand(instruction, 1).num_bytes
        if instruction.opcode == "scatter":
            num_arrays = len(instruction.operands) // 2
            return sum(
                computation.operand(instruction, index).num_bytes
                for index in range(num_arrays + 1, 2 * num_arrays + 1)
            )
        return instruction.num_bytes


def part_of(op_name: str) -> Part:
    """The innermost part that a JAX operation's path names."""
    scopes = op_name.split("/")
    for part, scope in (
        (Part.ATTENTION, ATTENTION),
        (Part.KV_WRITE, KV_WRITE),
        (Part.LAYERS, LAYERS),
    ):
        if scope in scopes:
            return part
    return Part.OUTSIDE


def _bytes_taken(user: Instruction, index: int, operand: Instruction) -> int:
    if index == 0 and user.opcode in TAKES_PART:
        return user.num_bytes
    if index == 0 and user.opcode in SETS_PART:
        return 0
    return operand.num_bytes


def _total_bytes(launches: list[Launch]) -> int:
    return sum(launch.num_bytes * launch.times for launch in launches)
