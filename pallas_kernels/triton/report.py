"""Compiles the Triton kernels for a GPU that is not there, and says what they take of it.

The launches are those of the backend itself, recorded while it is traced, so that what is
reported is what is shipped. Cubins come from the assembler in Triton's wheel; JAX assembles the
same PTX with its own, which may allocate registers a little differently.

    python -m looped.pallas_kernels.triton.report    prints the table of all configurations
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..architectures import ARCHITECTURES, SPILL_LIMIT
from ..attention_metadata import AttentionMetadata
from ..kernel_backend import DTYPES
from .attention import TritonBackend
from .launch import PTX_VERSION

# Bytes of shared memory that one block may use.
SHARED_MEMORY_LIMIT: Mapping[str, int] = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}

HEAD_DIMS = (64, 80, 96, 128, 256)

POINTER_TYPES = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32", "int32": "*i32"}


@dataclass(frozen=True, kw_only=True)
class RecordedLaunch:
    """One kernel launch as the backend asks for it."""

    kernel: Any
    pointers: Sequence[str]
    """Triton types of the pointers, in order."""
    num_again: int
    """Parameters behind them that are not used, see `launch.launch`."""
    grid: tuple[int, ...]
    constants: Mapping[str, Any]
    num_warps: int
    num_stages: int


@dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """What a kernel takes on one architecture."""

    name: str
    architecture: str
    dtype: str
    head_dim: int
    launch: RecordedLaunch
    registers: int
    """Per thread."""
    spilled: int
    """Bytes per thread on the stack; the kernels have no arrays of their own there."""
    shared: int
    """Bytes of shared memory per block."""
    ttir: str
    ptx: str

    @property
    def products(self) -> str:
        """How matrix products are done: wgmma, mma, or fma without tensor cores; - if none are."""
        if "tt.dot" not in self.ttir:
            return "-"
        return "wgmma" if "wgmma" in self.ptx else "mma" if "mma.sync" in self.ptx else "fma"

    @property
    def problems(self) -> list[str]:
        """Limits that this kernel exceeds; empty for what may be shipped."""
        found = []
        if self.spilled > SPILL_LIMIT:
            found.append(f"spills {self.spilled} bytes, at most {SPILL_LIMIT} are allowed")
        limit = SHARED_MEMORY_LIMIT[self.architecture]
        if self.shared > limit:
            found.append(f"takes {self.shared} bytes of shared memory, a block has {limit}")
        return found


def recorded_launches(
    architecture: str,
    dtype: str,
    head_dim: int,
    *,
    num_kv_heads: int = 16,
    group: int = 1,
    block_size: int = 16,
    num_blocks: int = 2**17,
) -> list[RecordedLaunch]:
    """The launches of both forms of the backend, none of them twice.

    Args:
        architecture: "sm_80" or "sm_90".
        dtype: of queries and pools.
        num_blocks: blocks of all layers; the default passes 2^31 elements from head_dim 64 on.
    """
    found: list[RecordedLaunch] = []

    def record(
        kernel: Any,
        *,
        inputs: Sequence[Array],
        in_place: Sequence[Array] = (),
        outputs: Sequence[jax.ShapeDtypeStruct] = (),
        grid: tuple[int, ...],
        constants: Mapping[str, Any],
        num_warps: int,
        num_stages: int,
        architecture: str,
    ) -> tuple[Array, ...]:
        dtypes = [array.dtype for array in (*inputs, *in_place)] + [new.dtype for new in outputs]
        pointers = [POINTER_TYPES[jnp.dtype(dtype).name] for dtype in dtypes]
        if kernel.__name__ not in [launch.kernel.__name__ for launch in found]:
            found.append(
                RecordedLaunch(
                    kernel=kernel,
                    pointers=pointers,
                    num_again=len(in_place),
                    grid=grid,
                    constants=constants,
                    num_warps=num_warps,
                    num_stages=num_stages,
                )
            )
        return (*(jnp.zeros(x.shape, x.dtype) for x in outputs), *in_place)

    num_rows, num_sequences = 256, 16
    pool = jax.ShapeDtypeStruct((num_blocks, num_kv_heads, block_size, head_dim), dtype)
    rows = jax.ShapeDtypeStruct((num_rows, num_kv_heads * group, head_dim), dtype)
    metadata = AttentionMetadata.abstract(
        num_decode=num_sequences, num_items=num_sequences, table_width=256
    )
    first_block = jax.ShapeDtypeStruct((), jnp.int32)
    for is_fused in (False, True):
        backend = TritonBackend(name="triton", is_fused=is_fused, launch=record)
        attend = partial(backend, scale=head_dim**-0.5, architecture=architecture)
        jax.eval_shape(attend, rows, pool, pool, metadata, first_block)
    return found


def compile_launch(
    launch: RecordedLaunch, architecture: str, dtype: str, head_dim: int
) -> CompiledKernel:
    """Compile to a cubin; `dtype` and `head_dim` only name it.

    Raises:
        ImportError: Triton is not installed.
        RuntimeError: the kernel does not compile.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = launch.kernel.arg_names
    pointers = dict(zip(names, launch.pointers, strict=False))
    again = dict.fromkeys(names[len(pointers) : len(pointers) + launch.num_again], 1)
    constants = {**again, **launch.constants}
    compiled = triton.compile(
        ASTSource(
            launch.kernel,
            signature={name: pointers.get(name, "constexpr") for name in names},
            constexprs={name: constants[name] for name in names if name not in pointers},
            attrs={(index,): [["tt.divisibility", 16]] for index in range(len(pointers))},
        ),
        target=GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32),
        options={
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
            "enable_fp_fusion": True,
            "ptx_version": PTX_VERSION,
        },
    )
    registers, spilled = _resources(compiled.asm["cubin"])
    return CompiledKernel(
        name=launch.kernel.__name__,
        architecture=architecture,
        dtype=dtype,
        head_dim=head_dim,
        launch=launch,
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        ttir=compiled.asm["ttir"],
        ptx=compiled.asm["ptx"],
    )


def compile_all(architecture: str, dtype: str, head_dim: int) -> Iterator[CompiledKernel]:
    """Every kernel of one configuration."""
    for launch in recorded_launches(architecture, dtype, head_dim):
        yield compile_launch(launch, architecture, dtype, head_dim)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack per thread, by cuobjdump of Triton's wheel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        output = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", output)
    if found is None:
        raise RuntimeError(f"expected REG and STACK from {tool} -res-usage, got: {output}")
    return int(found[1]), int(found[2])


def main() -> None:
    print("| GPU | dtype | D | kernel | tile | warps | stages | registers | spill | shared | by |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for architecture in ARCHITECTURES:
        for dtype in DTYPES:
            for head_dim in HEAD_DIMS:
                for kernel in compile_all(architecture, dtype, head_dim):
                    launch, constants = kernel.launch, kernel.launch.constants
                    tile = f"{constants.get('QUERY_TILE', '-')}x{constants.get('KEY_TILE', '-')}"
                    cells = (
                        *(architecture, dtype, head_dim, kernel.name.removesuffix("_kernel")),
                        *(tile, launch.num_warps, launch.num_stages, kernel.registers),
                        *(kernel.spilled, kernel.shared, kernel.products),
                    )
                    print("|", " | ".join(map(str, cells)), "|", flush=True)
                    for problem in kernel.problems:
                        raise SystemExit(f"{kernel.name} on {architecture}: {problem}")


if __name__ == "__main__":
    main()
