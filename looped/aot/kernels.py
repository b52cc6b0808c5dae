"""Registers, spills and shared memory of a step's kernels, from what XLA dumps of a compilation.

XLA writes the PTX of each kernel it makes, its own and those that Pallas lowers, and a list of
launches with their shared memory. An assembler reads the PTX again for registers and spills; it is
the one in Triton's wheel or CUDA's on the PATH, not the one inside XLA, which may differ a little.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from looped.errors import LoopedError


def dump_options(folder: Path) -> dict[str, str | bool]:
    """Compiler options that fill the folder which `read_kernels` reads."""
    # From jaxlib 0.11 on PTX is written only where it is asked for.
    return {"xla_dump_to": str(folder), "xla_dump_emitter_re": "ptx"}


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """What one kernel takes of a GPU."""

    name: str
    num_registers: int
    """Per thread."""
    spill_bytes: int
    """Per thread, of registers that live in memory: stores and loads, whichever is more."""
    shared_bytes: int
    """Per block."""

    @property
    def resources(self) -> tuple[int, int, int]:
        return self.num_registers, self.spill_bytes, self.shared_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Assembler:
    """Reads PTX for one architecture; equal kernels are assembled once.

    Args:
        architecture: "sm_80" and the like.
    """

    def __init__(self, architecture: str) -> None:
        self.path = find_assembler()
        self._architecture = architecture
        self._outputs: dict[str, str] = {}

    def read(self, ptx: str, name: str) -> tuple[int, int, int]:
        """Registers, spill bytes and static shared bytes of the one kernel in a PTX text.

        Raises:
            LoopedError: no assembler, or PTX that it refuses.
        """
        text = ptx.replace(name, "kernel")
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self._outputs:
            self._outputs[key] = self._assemble(text)
        output = self._outputs[key]
        spills = re.findall(r"(\d+) bytes spill", output)
        shared = re.findall(r"(\d+) bytes smem", output)
        (registers,) = re.findall(r"Used (\d+) registers", output)
        return int(registers), max(map(int, spills), default=0), sum(map(int, shared))

    def _assemble(self, ptx: str) -> str:
        if self.path is None:
            raise LoopedError("no ptxas: pip install triton, or put CUDA's on the PATH")
        command = [self.path, "-v", "--gpu-name", self._architecture, "-o", "/dev/null"]
        command.append("/dev/stdin")
        done = subprocess.run(command, input=ptx, capture_output=True, text=True)
        if done.returncode:
            raise LoopedError(f"{self.path} refused a kernel: {done.stderr.strip()}")
        return done.stdout + done.stderr


def find_assembler() -> str | None:
    """The newest ptxas at hand; None without one."""
    if (spec := importlib.util.find_spec("triton")) is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "backends" / "nvidia" / "bin"
        for name in ("ptxas-blackwell", "ptxas"):
            if (folder / name).exists():
                return str(folder / name)
    return shutil.which("ptxas")


def read_kernels(folder: Path, assembler: Assembler) -> tuple[list[Kernel], list[str]]:
    """The kernels of one dumped compilation; equal ones, of equal layers say, once.

    Args:
        folder: what `dump_options` has filled; dumps of one compilation only.
        assembler: for the target's architecture.

    Returns:
        The kernels, and the names of those that are launched but have left no PTX.

    Raises:
        LoopedError: no list of launches, or see `Assembler.read`.
    """
    shared = _shared_bytes(folder)
    kernels: dict[tuple[str, int, int, int], Kernel] = {}
    unread = set(shared)
    for path in sorted(folder.glob("*.ptx")):
        ptx = path.read_text()
        for name in re.findall(r"\.entry (\w+)", ptx):
            num_registers, spill_bytes, static = assembler.read(ptx, name)
            kernel = Kernel(
                name=name,
                num_registers=num_registers,
                spill_bytes=spill_bytes,
                shared_bytes=max(static, shared.get(name, 0)),
            )
            # XLA numbers the copies of a name: fusion_12, loop_add_fusion_3.
            family = re.sub(r"_\d+$", "", name)
            kernels.setdefault((family, *kernel.resources), kernel)
            unread.discard(name)
    return list(kernels.values()), sorted(unread)


def _shared_bytes(folder: Path) -> dict[str, int]:
    """Shared memory of each kernel that is launched, by name."""
    lists = list(folder.glob("*.thunk_sequence_after_thunk_passes.txt"))
    if not lists:
        raise LoopedError(f"expected XLA's list of launches, got {sorted(folder.iterdir())}")
    shared: dict[str, int] = {}
    for path in lists:
        for name, size in re.findall(r"(\S+) grid: .* shared_memory: (\d+)", path.read_text()):
            shared[name] = max(shared.get(name, 0), int(size))
    return shared
