"""One compiled step: its numbers, what it must not have, and what it should reach."""

import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from looped.process.compilation_cache import no_cache_entries
from looped.process.jax_options import with_own_jax_options
from looped.programs.executables import Executables, Step
from looped.sched import LaunchKind

from .checks import (
    byte_aims,
    host_failures,
    kernel_failures,
    launch_aims,
    pool_failures,
    state_failures,
    unread_failures,
    weight_aims,
)
from .embedded import embedded_kernels
from .floors import Floor, floor_of
from .hlo import HloModule
from .kernels import Assembler, Kernel, dump_options, read_kernels
from .launches import Part, count, launches_of
from .targets import Target


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What compiling one step has shown. Bytes and launches are of one pass."""

    target: str
    backend: str
    layers: str
    kind: LaunchKind
    num_rows: int
    form: str = ""
    """Of a program that has several: what its rows may ask for."""
    error: str | None = None
    """Why it did not compile; then the rest is empty."""
    compile_seconds: float = 0.0
    """Trace, lower and compile, on this machine's CPU."""
    aliased_bytes: int = 0
    temporary_bytes: int = 0
    launches_per_layer: int | None = None
    """Attention among them, its loops' bodies once; None for steps without layers."""
    launches_in_attention: int | None = None
    num_bytes: int = 0
    """Of all launches but attention."""
    floor: Floor | None = None
    floor_seconds: float = 0.0
    """An estimate from formula and data sheet; nothing was timed."""
    kernels: list[Kernel] | None = None
    """None: no assembler is installed, so nobody has looked."""
    failures: list[str] = field(default_factory=list)
    """What must not be."""
    missed_aims: list[str] = field(default_factory=list)
    """What should be better."""

    @property
    def rung_name(self) -> str:
        """Kind and rows, and the form where there are several."""
        return f"{self.kind.name.lower()}:{self.num_rows} {self.form}".strip()

    @property
    def name(self) -> str:
        """The step, for a line of its own."""
        if not self.kind.runs_layers:
            return self.rung_name
        return f"{self.backend} {self.layers} {self.rung_name}"

    @property
    def bytes_over_floor(self) -> float | None:
        """Bytes outside attention over weights and activations."""
        return self.num_bytes / self.floor.bytes_outside_attention if self.floor else None

    def to_json(self) -> dict[str, Any]:
        values = dict(self.__dict__)
        values |= {
            "kind": self.kind.name.lower(),
            "floor": self.floor and dict(self.floor.__dict__),
            "kernels": None
            if self.kernels is None
            else [kernel.to_json() for kernel in self.kernels],
            "bytes_over_floor": self.bytes_over_floor,
        }
        return values


@dataclass(frozen=True, kw_only=True)
class CompiledStep:
    """What a compilation leaves to look at."""

    seconds: float
    """Trace, lower and compile."""
    module: HloModule
    aliased_bytes: int
    temporary_bytes: int
    kernels: list[Kernel] | None
    unread_kernels: list[str]
    """Launched, but nothing was found to look at."""


@with_own_jax_options
def compile_step(
    executables: Executables, step: Step, target: Target, assembler: Assembler, context: int
) -> StepReport:
    """Compiles one step for the target and looks at the result.

    Args:
        executables: steps for the target.
        step: program, rows and form.
        target: the GPU.
        assembler: for its architecture.
        context: keys that every sequence has, for the formulas.

    Returns:
        The report; of a step that does not compile, one with an error.
    """
    kind, num_rows, form = step
    report = StepReport(
        target=target.name,
        backend=executables.backend,
        layers=executables.layers,
        kind=kind,
        num_rows=num_rows,
        form=form.name,
    )
    try:
        compiled = _compile(executables, step, assembler)
    except Exception as error:  # whatever refuses it: the backend, Pallas, Triton or XLA
        message = " ".join(str(error).split())[:500]
        return replace(report, error=message, failures=[f"does not compile: {message}"])
    launches = launches_of(compiled.module)
    others = [launch for launch in launches if launch.part is not Part.ATTENTION]
    attention = [launch for launch in launches if launch.part is Part.ATTENTION]
    layers = [launch for launch in launches if launch.part is not Part.OUTSIDE]
    config = executables.shape.config
    floor = floor_of(executables.shape, (kind, num_rows), context)
    sheet = target.data_sheet
    report = replace(
        report,
        compile_seconds=compiled.seconds,
        aliased_bytes=compiled.aliased_bytes,
        temporary_bytes=compiled.temporary_bytes,
        # What runs once for all layers is fewer launches than there are layers.
        launches_per_layer=count(layers) // config.num_layers if kind.runs_layers else None,
        launches_in_attention=count(attention) // config.num_layers if kind.runs_layers else None,
        num_bytes=sum(launch.num_bytes * launch.times for launch in others),
        floor=floor,
        floor_seconds=floor.seconds(sheet.memory_bandwidth, sheet.bfloat16_flops),
        kernels=compiled.kernels,
    )
    failures = [
        *kernel_failures(compiled.kernels or [], target.max_shared_bytes),
        *unread_failures(compiled.unread_kernels),
        *state_failures(compiled.module, executables.state_type, compiled.aliased_bytes),
        *pool_failures(launches, executables.state_type, config, compiled.temporary_bytes),
    ]
    # Attention `xla` loops over tiles by data; on a GPU it is for tests.
    if executables.backend != "xla" or not kind.runs_layers:
        failures += host_failures(compiled.module)
    is_decode = kind.carries_decode and num_rows <= executables.shape.max_num_seqs
    aims = [
        *launch_aims(report.launches_per_layer or 0),
        *weight_aims(others, config),
        *byte_aims(report.bytes_over_floor or 0.0),
    ]
    return replace(report, failures=failures, missed_aims=aims if is_decode else [])


def _compile(executables: Executables, step: Step, assembler: Assembler) -> CompiledStep:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        lowered = executables.lower(step)
        with no_cache_entries():
            compiled = lowered.compile(compiler_options=dump_options(Path(folder)))
        seconds = time.perf_counter() - start
        module = HloModule(compiled.as_text() or "")
        kernels, unread = None, list[str]()
        if assembler.path is not None:
            dumped, without_ptx = read_kernels(Path(folder), assembler)
            embedded, without_kernel = embedded_kernels(module, assembler)
            kernels, unread = dumped + embedded, without_ptx + without_kernel
    memory = compiled.memory_analysis()
    assert memory is not None, "the CUDA plugin says what memory a program needs"
    return CompiledStep(
        seconds=seconds,
        module=module,
        aliased_bytes=memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        kernels=kernels,
        unread_kernels=unread,
    )
