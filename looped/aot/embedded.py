"""Triton kernels that a program brings along: jax-triton's custom calls carry them compiled to PTX.

A call's configuration is a compressed protocol buffer of jax-triton's. Of it only two neighbouring
fields are read: shared memory (field 3) and PTX (field 4).
"""

import re
import zlib
from collections.abc import Iterator

from .hlo import HloModule, Instruction
from .kernels import Assembler, Kernel

_COMPRESSED = re.compile(r'"(x\\(?:001|234|332)(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_KERNEL = re.compile(
    rb"(?:\x18(?P<shared>" + _VARINT + rb"))?\x22(?P<size>" + _VARINT + rb")(?=//\n)"
)
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def embedded_kernels(module: HloModule, assembler: Assembler) -> list[Kernel]:
    """Kernels inside the custom calls of a compiled program, each once.

    Args:
        module: the optimized program.
        assembler: for the target's architecture.

    Raises:
        LoopedError: see `Assembler.read`.
    """
    kernels: dict[Kernel, None] = {}
    for call in _custom_calls(module):
        for text in _COMPRESSED.findall(call.attributes):
            for ptx, shared_bytes in find_ptx(zlib.decompress(unescape(text))):
                (name,) = re.findall(r"\.entry (\w+)", ptx)
                registers, spills, static = assembler.read(ptx, name)
                kernel = Kernel(
                    name=name,
                    num_registers=registers,
                    spill_bytes=spills,
                    shared_bytes=max(static, shared_bytes),
                )
                kernels[kernel] = None
    return list(kernels)


def _custom_calls(module: HloModule) -> Iterator[Instruction]:
    for computation in module.computations.values():
        for instruction in computation:
            if instruction.opcode == "custom-call":
                yield instruction


def find_ptx(message: bytes) -> list[tuple[str, int]]:
    """Each PTX text in a serialized kernel call, and the shared bytes it is launched with."""
    found = []
    for match in _KERNEL.finditer(message):
        text = message[match.end() : match.end() + _varint(match["size"])]
        if b".entry " in text:
            found.append((text.decode(), _varint(match["shared"] or b"\0")))
    return found


def unescape(text: str) -> bytes:
    """The bytes of a string as HLO prints it, with C's escapes."""

    def decode(match: re.Match[bytes]) -> bytes:
        escaped = match[1]
        if len(escaped) == 3:
            return bytes([int(escaped, 8)])
        return _NAMED.get(escaped, escaped)

    return _ESCAPE.sub(decode, text.encode("latin-1"))


def _varint(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(encoded))
