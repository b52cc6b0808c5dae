"""Optimized HLO as text, read into instructions: what XLA's compiled executables offer everywhere.

Only what the analysis asks for is kept. The grammar is XLA's printed form, one instruction a line;
steps compiled by jaxlib 0.10.2, 0.11.2 and 0.12.0.1 were read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

ITEM_SIZES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "token": 0, "opaque": 0}

ASYNC_RESULTS = {"fusion-start": 1, "copy-start": 0}
"""Which element of the start of an asynchronous operation is what the operation computes. It is
read as that operation; its end, `fusion-done` and the like, hands the result on."""

_ARRAY = re.compile(r"\b([a-z]\w*?)\[([\d,<=]*)\]")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_CALLED = re.compile(r"(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d+), \{[\d, ]*\}")
_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    shape: str
    """As printed: an array, or a tuple of them."""
    operands: tuple[str, ...]
    """Names within the same computation; of a parameter, its number."""
    attributes: str
    is_root: bool

    @cached_property
    def arrays(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Type and dimensions of the array, or of each in the tuple."""
        return tuple(
            (dtype, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))
            for dtype, sizes in _ARRAY.findall(self.shape)
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the result."""
        return sum(item_size(dtype) * prod(sizes) for dtype, sizes in self.arrays)

    @property
    def called(self) -> tuple[str, ...]:
        """Computations that it runs; of a loop its body, of a conditional every branch."""
        names = _CALLED.findall(self.attributes)
        for group in _BRANCHES.findall(self.attributes):
            names += [name.strip(" %") for name in group.split(",")]
        return tuple(names)

    @property
    def op_name(self) -> str:
        """Path of the JAX operation it comes from, empty where XLA has lost it."""
        return self._find(r'op_name="([^"]*)"')

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return self._find(r'custom_call_target="([^"]*)"')

    @property
    def in_place_operands(self) -> Mapping[int, int]:
        """Operands of a custom call that it writes into, and the results that these become."""
        text = self._find(r"output_to_operand_aliasing=(\{.*?\)\})")
        pairs = re.findall(r"\{(\d*)\}: \((\d+)", text)
        return {int(operand): int(result or 0) for result, operand in pairs}

    @property
    def trip_count(self) -> int:
        """Rounds of a loop, 1 where they are data."""
        return int(self._known_trip_count or 1)

    @property
    def has_known_trip_count(self) -> bool:
        """Whether a loop has as many rounds whatever the data."""
        return bool(self._known_trip_count)

    @property
    def _known_trip_count(self) -> str:
        return self._find(r'known_trip_count":\{"n":"(\d+)"')

    def _find(self, pattern: str) -> str:
        match = re.search(pattern, self.attributes)
        return match[1] if match else ""


class Computation:
    """Instructions in the order in which they run, operands before their users."""

    def __init__(self, instructions: list[Instruction]) -> None:
        self.instructions = instructions
        self._by_name = {instruction.name: instruction for instruction in instructions}

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def operand(self, instruction: Instruction, index: int) -> Instruction:
        """The instruction that gives an operand."""
        return self._by_name[instruction.operands[index]]

    @cached_property
    def root(self) -> Instruction:
        return next(instruction for instruction in self if instruction.is_root)

    @cached_property
    def parameters(self) -> Mapping[int, Instruction]:
        """Parameters by number."""
        return {int(i.operands[0]): i for i in self if i.opcode == "parameter"}

    @cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """Who reads each instruction's result."""
        users: dict[str, list[Instruction]] = {instruction.name: [] for instruction in self}
        for instruction in self:
            if instruction.opcode != "parameter":
                for name in dict.fromkeys(instruction.operands):
                    if name in users:
                        users[name].append(instruction)
        return users


class HloModule:
    """A compiled program.

    Args:
        text: `compiled.as_text()`.

    Raises:
        ValueError: text without an entry computation.
    """

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        header, entry = text.partition("\n")[0], None
        name, lines = "", list[str]()
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                name, lines = match[2], []
                entry = name if match[1] else entry
            elif line.startswith("}") and name:
                self.computations[name] = Computation([_parse(each) for each in lines])
                name = ""
            elif name and _INSTRUCTION.match(line):
                lines.append(line)
        if entry is None:
            raise ValueError("expected the text of an HLO module, got one without an ENTRY")
        self.entry = self.computations[entry]
        self.aliased_parameters = frozenset(map(int, _ALIAS.findall(header)))
        """Numbers of the entry's parameters whose memory a result takes over."""


def item_size(dtype: str) -> int:
    """Bytes of one value."""
    if dtype in ITEM_SIZES:
        return ITEM_SIZES[dtype]
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else 0


def _parse(line: str) -> Instruction:
    start = _INSTRUCTION.match(line)
    assert start is not None
    rest = line[start.end() :]
    shape_end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:shape_end], rest[shape_end:].lstrip()
    opcode, _, _ = rest.partition("(")
    operands_end = _closing(rest, len(opcode))
    attributes = rest[operands_end:]
    if opcode in ASYNC_RESULTS:
        shape, opcode = _elements(shape)[ASYNC_RESULTS[opcode]], opcode.removesuffix("-start")
    operands = _COMMENT.sub("", rest[rest.index("(") + 1 : operands_end - 1])
    is_reference = opcode not in ("constant", "parameter")
    names = re.findall(r"%([\w.\-]+)", operands) if is_reference else [operands.strip()]
    return Instruction(
        name=start[2],
        opcode=opcode,
        shape=_COMMENT.sub("", shape),
        operands=tuple(names),
        attributes=attributes,
        is_root=bool(start[1]),
    )


def _elements(shape: str) -> list[str]:
    """The elements of a tuple's shape."""
    elements, depth = [""], 0
    for character in shape[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            elements.append("")
        else:
            elements[-1] += character
    return [element.strip() for element in elements]


def _closing(text: str, start: int) -> int:
    """Index behind the parenthesis that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index + 1
    raise ValueError(f"expected a closing parenthesis in an HLO instruction, got {text!r}")
