"""Compiled steps, one per launch kind and row bucket, made ahead of time.

An executable is called directly: a wrong shape is an error, never a silent compilation. The set is
fixed by shapes alone, so engines of equal shape can share one.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from looped.device.state import DeviceState, StateShape
from looped.progress import track
from looped.sched import LaunchKind, Rung

from .compile_target import THIS_MACHINE, CompileTarget
from .packed_layout import PackedLayout
from .parameters import Parameters
from .registry import PROGRAMS
from .sampling.logit_edits import slot_layout, write_slot


class Executables:
    """Compiled steps of one shape of state and parameters.

    Args:
        shape: sizes of the device state.
        parameters: only their shapes and types matter.
        backend: attention backend, by the name `looped.pallas_kernels` has for it.
        target: where the steps will run.
    """

    def __init__(
        self,
        shape: StateShape,
        parameters: Parameters,
        *,
        backend: str,
        target: CompileTarget = THIS_MACHINE,
    ) -> None:
        self.shape = shape
        self.backend = backend
        self.target = target
        self.layers = "scanned" if parameters.model.is_stacked else "unrolled"
        self.num_compilations = 0
        leaves, self._tree = jax.tree.flatten(parameters)
        self._leaf_types = leaves
        self.state_type = jax.eval_shape(lambda: DeviceState.zeros(shape))
        """The device state as shapes and types."""
        self._layouts: dict[Rung, PackedLayout[Any]] = {}
        self._compiled: dict[Rung, Any] = {}
        self._slot_writer: Any = None

    def layout(self, rung: Rung) -> PackedLayout[Any]:
        """Where the arrays of such a launch lie in its one upload."""
        if rung not in self._layouts:
            kind, num_rows = rung
            self._layouts[rung] = PROGRAMS[kind].layout(self.shape, num_rows)
        return self._layouts[rung]

    def get(self, rung: Rung) -> Any:
        """The executable of a rung, compiled now if it was not prepared."""
        if rung not in self._compiled:
            self._compiled[rung] = self.lower(rung).compile()
            self.num_compilations += 1
        return self._compiled[rung]

    @property
    def slot_writer(self) -> Any:
        """The executable that writes one request's logit edits, compiled now if need be."""
        if self._slot_writer is None:
            layout = slot_layout(self.shape)

            def call(state: DeviceState, packed: jax.Array) -> DeviceState:
                return write_slot(state, layout.unpack(packed))

            packed_type = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
            lowered = self.target.lower(call, (self.state_type, packed_type), donated=0)
            self._slot_writer = lowered.compile()
            self.num_compilations += 1
        return self._slot_writer

    def prepare(
        self, rungs: Iterable[Rung], *, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Compiles the slot writer and what is missing of these rungs, with a progress bar.

        Args:
            rungs: what to compile.
            should_stop: asked before each; the rest is left uncompiled then.
        """
        _ = self.slot_writer
        missing = [rung for rung in rungs if rung not in self._compiled]
        for rung in track(missing, "compiling"):
            if should_stop():
                return
            self.get(rung)

    @property
    def compiled_rungs(self) -> tuple[Rung, ...]:
        """What has been compiled so far."""
        return tuple(self._compiled)

    @property
    def workspace_bytes(self) -> int:
        """Largest temporary memory of the executables compiled so far."""
        analyses = (compiled.memory_analysis() for compiled in self._compiled.values())
        return max((analysis.temp_size_in_bytes for analysis in analyses), default=0)

    def lower(self, rung: Rung) -> jax.stages.Lowered:
        """The step of a rung, traced and lowered for the target but not compiled."""
        layout = self.layout(rung)
        step = PROGRAMS[rung[0]].step(self.shape, self.backend)

        def call(leaves: list[jax.Array], state: DeviceState, packed: jax.Array) -> Any:
            with jax.named_scope(stage_scope(rung[0])):
                return step(jax.tree.unflatten(self._tree, leaves), state, layout.unpack(packed))

        # The module's name in profiles and dumps.
        call.__name__ = f"{stage_scope(rung[0])}_{rung[1]}"
        packed_type = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
        return self.target.lower(call, (self._leaf_types, self.state_type, packed_type), donated=1)


def stage_scope(kind: LaunchKind) -> str:
    """The name of a whole step in profiles: recurrent, prefill, coda or score."""
    return kind.name.lower()
