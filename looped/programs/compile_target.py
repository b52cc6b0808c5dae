"""Where compiled steps will run: on this machine's device, or on a GPU that is not there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Sharding, use_abstract_mesh

from looped.pallas_kernels.triton.launch import abstract_gpu


@dataclass(frozen=True, kw_only=True)
class CompileTarget:
    """A device to compile for."""

    sharding: Sharding | None = None
    """Places every argument on the device; None: this process's default device."""
    device_kind: str | None = None
    """What an absent device calls itself ("NVIDIA H200"): code that is traced asks JAX's abstract
    device for it. None: the device is here."""

    def lower(
        self, function: Callable[..., Any], types: tuple[Any, ...], *, donated: int
    ) -> jax.stages.Lowered:
        """Traces and lowers a function for the target.

        Args:
            function: what to compile.
            types: shapes and types of its arguments: pytrees of anything that has both.
            donated: index of the argument whose memory the results take over.
        """

        def place(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding)

        jitted, places = jax.jit(function, donate_argnums=donated), jax.tree.map(place, types)
        if self.device_kind is None:
            return jitted.lower(*places)
        # The platform by name: this process need have no backend for it.
        with use_abstract_mesh(abstract_gpu(self.device_kind)):
            return jitted.trace(*places).lower(lowering_platforms=("cuda",))


THIS_MACHINE = CompileTarget()
