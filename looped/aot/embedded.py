"""Triton kernels that a program brings along: jax-triton's custom calls carry them compiled to PTX.

A call's configuration is a compressed protocol buffer of jax-triton's. Of it only two neighbouring
fields are read: shared memory (field 3) and PTX (field 4). HLO prints it with C's octal escapes
where the call is untyped (jax-triton 0.3), with MLIR's hexadecimal ones where it is typed (0.4).
"""

import re
import zlib
from collections.abc import Iterator

from .hlo import HloModule, Instruction
from .kernels import Assembler, Kernel

TARGET = "triton_kernel_call"
"""Begins what jax-triton's custom calls call."""

_OCTAL = re.compile(r'backend_config="((?:[^"\\]|\\.)*)"')
_HEXADECIMAL = re.compile(r'opaque = "((?:[^"\\]|\\.)*)"')
_OCTAL_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_HEXADECIMAL_ESCAPE = re.compile(rb"\\([0-9A-F]{2}|.)", re.DOTALL)
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_KERNEL = re.compile(
    rb"(?:\x18(?P<shared>" + _VARINT + rb"))?\x22(?P<size>" + _VARINT + rb")(?=//\n)"
)
_NAMED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def embedded_kernels(module: HloModule, assembler: Assembler) -> tuple[list[Kernel], list[str]]:
    """Kernels inside the custom calls of a compiled program.

    Args:
        module: the optimized program.
        assembler: for the target's architecture.

    Returns:
        The kernels, each once, and the names of calls in which none was found.

    Raises:
        LoopedError: see `Assembler.read`.
    """
    kernels: dict[Kernel, None] = {}
    unread = []
    for call in _kernel_calls(module):
        found = ptx_of(call)
        if not found:
            unread.append(call.name)
        for ptx, shared_bytes in found:
            (name,) = re.findall(r"\.entry (\w+)", ptx)
            registers, spills, static = assembler.read(ptx, name)
            kernel = Kernel(
                name=name,
                num_registers=registers,
                spill_bytes=spills,
                shared_bytes=max(static, shared_bytes),
            )
            kernels[kernel] = None
    return list(kernels), unread


def _kernel_calls(module: HloModule) -> Iterator[Instruction]:
    for computation in module.computations.values():
        for instruction in computation:
            if instruction.opcode == "custom-call" and instruction.target.startswith(TARGET):
                yield instruction


def ptx_of(call: Instruction) -> list[tuple[str, int]]:
    """See `find_ptx`; nothing where the configuration is in no form that is known here."""
    if match := _OCTAL.search(call.attributes):
        message = unescape_octal(match[1])
    elif match := _HEXADECIMAL.search(call.attributes):
        message = unescape_hexadecimal(match[1])
    else:
        return []
    try:
        return find_ptx(zlib.decompress(message))
    except zlib.error:  # the caller reports the call as unread
        return []


def find_ptx(message: bytes) -> list[tuple[str, int]]:
    """Each PTX text in a serialized kernel call, and the shared bytes it is launched with."""
    found = []
    for match in _KERNEL.finditer(message):
        text = message[match.end() : match.end() + _varint(match["size"])]
        if b".entry " in text:
            found.append((text.decode(), _varint(match["shared"] or b"\0")))
    return found


def unescape_octal(text: str) -> bytes:
    """The bytes of a string that HLO prints with C's escapes."""

    def decode(match: re.Match[bytes]) -> bytes:
        escaped = match[1]
        if len(escaped) == 3:
            return bytes([int(escaped, 8)])
        return _NAMED.get(escaped, escaped)

    return _OCTAL_ESCAPE.sub(decode, text.encode("latin-1"))


def unescape_hexadecimal(text: str) -> bytes:
    """The bytes of a string that HLO prints with MLIR's escapes."""

    def decode(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 16)]) if len(match[1]) == 2 else match[1]

    return _HEXADECIMAL_ESCAPE.sub(decode, text.encode("latin-1"))


def _varint(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * index for index, byte in enumerate(encoded))
