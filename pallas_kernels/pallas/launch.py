"""One way to launch a Pallas kernel: Triton on CUDA, Pallas's interpreter on a CPU.

Which of the two runs is settled when the program is lowered for its platform, never by looking
at this machine's devices, so a CPU host lowers the same program for a GPU that is not there.
Operands and outputs are whole arrays; kernels index them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt


def launch(
    kernel: Callable[..., None],
    operands: Sequence[jax.Array],
    out_shape: Sequence[jax.ShapeDtypeStruct],
    *,
    num_programs: int,
    num_warps: int,
    num_stages: int,
    aliases: Mapping[int, int] | None = None,
) -> list[jax.Array]:
    """Run `num_programs` programs of a kernel over references to the operands and the outputs.

    Args:
        kernel: takes a reference per operand, then one per output. What no program writes holds
            anything: NaN in the interpreter, what the memory held on a GPU.
        operands: at least one; none of size zero.
        out_shape: what the kernel writes.
        num_programs: the grid, one axis; at least 1.
        num_warps, num_stages: for the Triton compiler.
        aliases: operand to output; the output takes the operand's memory over, in place where
            the caller donates it.

    Raises:
        NotImplementedError: when lowered for a platform that is neither cuda nor cpu.
    """

    def run(*operands: jax.Array, interpret: bool) -> list[jax.Array]:
        call = pl.pallas_call(
            kernel,
            out_shape=tuple(out_shape),
            grid=(num_programs,),
            input_output_aliases=dict(aliases or {}),
            compiler_params=plt.CompilerParams(num_warps=num_warps, num_stages=num_stages),
            interpret=interpret,
        )
        return list(call(*operands))

    def on_cuda(*operands: jax.Array) -> Any:
        return run(*operands, interpret=False)

    def on_cpu(*operands: jax.Array) -> Any:
        return run(*operands, interpret=True)

    return lax.platform_dependent(*operands, cuda=on_cuda, cpu=on_cpu)
