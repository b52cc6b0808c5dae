"""The one place that knows jax-triton: calls a Triton kernel from traced JAX code.

Two generations differ in how a result that reuses an argument's buffer is said. Up to 0.3.x every
output is a kernel parameter behind all inputs, also one that aliases an input. From 0.4 such an
output has no parameter of its own, and the argument is passed as a mutable reference. Kernels are
written for both: they write through the input, and the parameters of 0.3 behind it are unused.

Nothing here needs a GPU. Kernels compile for the GPU that JAX runs on, or for one that is not
there, named by an abstract device: JAX's own way of tracing for other hardware.
"""

import importlib
import importlib.metadata
import inspect
import os
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
from jax.interpreters import partial_eval
from jax.sharding import AbstractDevice, AbstractMesh, get_abstract_mesh
from jaxtyping import Array

from .. import architectures

# Kernels travel to XLA as PTX and are assembled by JAX's ptxas, which may be years older than the
# one in Triton's wheel, whose dialect Triton would write (seen: `Unsupported .version 9.4; current
# version is '9.0'`, when XLA compiles or when the kernel first runs). PTX 8.5 is that of CUDA 12.6,
# the oldest that jax[cuda12] installs.
PTX_VERSION = 85


class Launch(Protocol):
    """Runs one kernel; see `launch`. Tests put Triton's interpreter in its place."""

    def __call__(
        self,
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
    ) -> tuple[Array, ...]: ...


def abstract_gpu(device_kind: str) -> AbstractMesh:
    """A mesh that names a GPU which need not be there, for `jax.sharding.use_abstract_mesh`.

    Args:
        device_kind: the device's name, such as "NVIDIA H200".
    """
    device = AbstractDevice(device_kind=device_kind, num_cores=None, platform="gpu")
    return AbstractMesh((1,), ("gpu",), abstract_device=device)


def gpu_architecture() -> str:
    """`architectures.architecture_here` where that is a GPU: nothing runs these kernels on a CPU.

    Raises:
        ValueError: no abstract device and no GPU, or a GPU of unknown architecture.
    """
    device = jax.devices()[0]
    if get_abstract_mesh().abstract_device is None and device.platform != "gpu":
        raise ValueError(
            "attention backend triton runs on an NVIDIA GPU, got a device of platform "
            f"{device.platform!r} ({device.device_kind}); choose backend xla there, or name an "
            "architecture to compile for a GPU"
        )
    return architectures.architecture_here()


def import_jax_triton() -> Any:
    """The module jax_triton.

    Raises:
        ImportError: jax-triton or Triton is not installed, or jaxlib has no CUDA plugin.
    """
    cache = os.environ.get("TRITON_CACHE_DIR")
    try:
        importlib.import_module("triton")
        return importlib.import_module("jax_triton")
    except ImportError as error:
        raise ImportError(
            "attention backend triton needs jax-triton >= 0.3.1, triton and JAX's CUDA plugin, "
            f"got: {error}; pip install 'looped[cuda12]', or choose backend xla"
        ) from error
    finally:
        # Its import empties this variable, without which Triton itself compiles nothing.
        os.environ.pop("TRITON_CACHE_DIR", None)
        if cache is not None:
            os.environ["TRITON_CACHE_DIR"] = cache


def launch(
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
    """Call a Triton kernel. Its parameters, in order: inputs, in_place, outputs, in_place again.

    Args:
        kernel: a `triton.jit` function. It writes through the first parameter of an `in_place`
            array; the second is of no use: jax-triton 0.3 passes the same pointer, and otherwise
            it is the number 1, which Triton compiles away.
        inputs: arrays that are only read.
        in_place: arrays that are read and written where they are; DONATE them.
        outputs: shapes and dtypes of new arrays; what the kernel leaves out is undefined.
        grid: number of programs along up to three axes.
        constants: values of the kernel's `tl.constexpr` parameters.
        num_warps, num_stages: of a program; pipeline depth of its loops.
        architecture: the GPU to compile for, "sm_80" or "sm_90".

    Returns:
        The outputs, then the arrays of `in_place` as they are now.

    Raises:
        ImportError: see `import_jax_triton`.
    """
    jax_triton = import_jax_triton()
    common = {
        "kernel": kernel,
        "name": kernel.__name__,
        "grid": grid,
        "num_warps": num_warps,
        "num_stages": num_stages,
        "compute_capability": int(architecture.removeprefix("sm_")),
        **constants,
    }
    if _version() < (0, 4):
        _write_older_ptx(jax_triton)
        aliases = {len(inputs) + i: len(outputs) + i for i in range(len(in_place))}
        shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in in_place]
        return tuple(
            jax_triton.triton_call(
                *inputs,
                *in_place,
                out_shape=[*outputs, *shapes],
                input_output_aliases=aliases,
                enable_fp_fusion=True,
                **common,
            )
        )
    _repair_dead_code_rule(jax_triton)
    references = [jax.new_ref(array) for array in in_place]
    num_pointers = len(inputs) + len(in_place) + len(outputs)
    again = dict.fromkeys(kernel.arg_names[num_pointers : num_pointers + len(in_place)], 1)
    results = jax_triton.triton_call(
        *inputs,
        *references,
        out_type=list(outputs),
        backend_options={"enable_fp_fusion": True, "ptx_version": PTX_VERSION},
        **again,
        **common,
    )
    return (*results, *(reference[...] for reference in references))


def _write_older_ptx(jax_triton: Any) -> None:
    """jax-triton 0.3 passes no options on to Triton: give it a compiler that adds ours."""
    library = jax_triton.triton_lib
    compiler = library.cb
    if getattr(compiler, "ptx_version", None) == PTX_VERSION:
        return

    class Backend(compiler.CUDABackend):  # type: ignore[misc, name-defined]
        def parse_options(self, options: dict[str, Any]) -> Any:
            return super().parse_options({**options, "ptx_version": PTX_VERSION})

    library.cb = types.SimpleNamespace(
        GPUTarget=compiler.GPUTarget, CUDABackend=Backend, ptx_version=PTX_VERSION
    )


def _repair_dead_code_rule(jax_triton: Any) -> None:
    """jax-triton 0.4.1 under JAX 0.12: its rule for unused results takes an argument too few.

    Without this nothing that calls a kernel lowers: `_triton_kernel_call_dce_rule() takes 2
    positional arguments but 3 were given`. Its rule keeps every call, and so does this one.
    """
    rules: dict[Any, Any] = partial_eval.dce_rules
    primitive = jax_triton.triton_lib.triton_kernel_call_p
    rule = rules.get(primitive)
    if rule is None or jax.__version_info__ < (0, 12):
        return
    if len(inspect.signature(rule).parameters) == 2:
        rules[primitive] = lambda used, _live, equation: rule(used, equation)


def _version() -> tuple[int, ...]:
    numbers = re.findall(r"\d+", importlib.metadata.version("jax-triton"))
    return tuple(int(number) for number in numbers[:2])
