"""Lower a program for CUDA on a machine without a GPU, and read the kernels' Triton IR."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import jax
from jax._src.lib.mlir import ir
from jax._src.pallas.triton import lowering as triton_lowering


def lower_for_cuda(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function`, jitted or not, lowered for CUDA; of the arguments only the shapes matter."""
    with gpu_that_is_not_there():
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))


def gpu_that_is_not_there() -> contextlib.AbstractContextManager[Any]:
    """Trace and lower in here: from JAX 0.11 on, Pallas lowers to Triton for a GPU it knows.

    The mesh has no axes, so that arrays are none the wiser. It is read when a call is traced.
    """
    if jax.__version_info__ < (0, 11):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def triton_kernels(lowered: Any) -> dict[str, str]:
    """Triton IR as text of each Pallas kernel in a lowered program, by the kernel's name.

    Reads private parts of JAX: the IR is bytecode in the custom call's configuration.
    """
    kernels = {}
    for call in _custom_calls(lowered.compiler_ir("stablehlo").operation):
        target = ir.StringAttr(call.attributes["call_target_name"]).value
        if target == "__gpu$xla.gpu.triton":
            configuration = ir.DictAttr(call.attributes["mhlo.backend_config"])
            with triton_lowering._new_ir_context():
                module = ir.Module.parse(ir.StringAttr(configuration["ir"]).value_bytes)
                kernels[ir.StringAttr(configuration["name"]).value] = str(module)
    return kernels


def _custom_calls(operation: Any) -> list[Any]:
    calls = []
    for region in operation.regions:
        for block in region:
            for inner in block:
                if inner.operation.name == "stablehlo.custom_call":
                    calls.append(inner)
                calls += _custom_calls(inner.operation)
    return calls


def pointer_offset_types(kernel: str, argument: int) -> set[str]:
    """Integer types of the offsets that are added to a kernel argument's pointer."""
    splats = re.findall(rf"(%\w+) = tt.splat %arg{argument} :", kernel)
    additions = [
        line
        for line in kernel.splitlines()
        if any(f"tt.addptr {base}," in line for base in (*splats, f"%arg{argument}"))
    ]
    return {re.search(r"(i\d+)>?$", line.split(" loc(")[0].strip())[1] for line in additions}
