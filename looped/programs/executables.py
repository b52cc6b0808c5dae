"""Compiled steps, one per program, row bucket and form, and the writers, made ahead of time.

An executable is called directly: a wrong shape is an error, never a silent compilation. The set is
fixed by shapes alone, so engines of equal shape can share one.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from looped.device.state import DeviceState, StateShape
from looped.progress import track
from looped.sched import LaunchKind, Rung

from .compile_target import THIS_MACHINE, CompileTarget
from .head import head
from .packed_layout import PackedLayout
from .parameters import Parameters
from .registry import PROGRAMS
from .sampling.forms import ONLY, Form, forms_of
from .writers.registry import WRITERS


class Step(NamedTuple):
    """What is compiled: a program for so many rows, in one of its forms."""

    kind: LaunchKind
    num_rows: int
    form: Form = ONLY

    @property
    def name(self) -> str:
        """In profiles and dumps: `recurrent_8`, `head_4_greedy_copies`."""
        words = (stage_scope(self.kind), str(self.num_rows), self.form.name)
        return "_".join(word for word in words if word)


class Executables:
    """Compiled steps of one shape of state and parameters.

    Args:
        shape: sizes of the device state.
        parameters: only their shapes and types matter.
        backend: attention backend, by the name `looped.pallas_kernels` has for it.
        target: where the steps will run.
        is_deterministic: whether a program has a single form.
    """

    def __init__(
        self,
        shape: StateShape,
        parameters: Parameters,
        *,
        backend: str,
        target: CompileTarget = THIS_MACHINE,
        is_deterministic: bool = False,
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
        self._is_deterministic = is_deterministic
        self._is_conditional = target.device_kind is None and jax.default_backend() == "cpu"
        self._layouts: dict[Rung, PackedLayout[Any]] = {}
        self._compiled: dict[Step, Any] = {}
        self._writers: dict[str, Any] = {}

    def layout(self, rung: Rung) -> PackedLayout[Any]:
        """Where the arrays of such a launch lie in its one upload."""
        if rung not in self._layouts:
            kind, num_rows = rung
            self._layouts[rung] = PROGRAMS[kind].layout(self.shape, num_rows)
        return self._layouts[rung]

    def forms(self, kind: LaunchKind) -> tuple[Form, ...]:
        """The forms of a program, on the device that it is compiled for."""
        return forms_of(
            kind,
            is_conditional=self._is_conditional,
            is_deterministic=self._is_deterministic,
        )

    def steps(self, rungs: Iterable[Rung]) -> list[Step]:
        """Everything that is compiled for some rungs: each in all of its forms."""
        return [Step(*rung, form) for rung in rungs for form in self.forms(rung[0])]

    def get(self, step: Step) -> Any:
        """The executable of a step, compiled now if it was not prepared."""
        if step not in self._compiled:
            self._compiled[step] = self.lower(step).compile()
            self.num_compilations += 1
        return self._compiled[step]

    def writer(self, name: str) -> Any:
        """The executable of a writer, compiled now if need be."""
        if name not in self._writers:
            self._writers[name] = self._lower_writer(name).compile()
            self.num_compilations += 1
        return self._writers[name]

    def prepare(
        self, rungs: Iterable[Rung], *, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Compiles the writers and what is missing of these rungs, with a progress bar.

        Args:
            rungs: what to compile.
            should_stop: asked before each; the rest is left uncompiled then.
        """
        for name in WRITERS:
            self.writer(name)
        missing = [step for step in self.steps(rungs) if step not in self._compiled]
        for step in track(missing, "compiling"):
            if should_stop():
                return
            self.get(step)

    @property
    def compiled_steps(self) -> tuple[Step, ...]:
        """What has been compiled so far."""
        return tuple(self._compiled)

    @property
    def workspace_bytes(self) -> int:
        """Largest temporary memory of the executables compiled so far."""
        analyses = (compiled.memory_analysis() for compiled in self._compiled.values())
        return max((analysis.temp_size_in_bytes for analysis in analyses), default=0)

    def lower(self, step: Step) -> jax.stages.Lowered:
        """A step, traced and lowered for the target but not compiled."""
        run = self._run_of(step)

        def call(leaves: list[jax.Array], state: DeviceState, *packed: jax.Array) -> Any:
            with jax.named_scope(stage_scope(step.kind)):
                return run(jax.tree.unflatten(self._tree, leaves), state, *packed)

        call.__name__ = step.name  # the module's name in profiles and dumps
        packed_types = []
        if step.kind.is_launched:
            size = self.layout((step.kind, step.num_rows)).size
            packed_types = [jax.ShapeDtypeStruct((size,), jnp.int32)]
        types = (self._leaf_types, self.state_type, *packed_types)
        return self.target.lower(call, types, donated=1)

    def _run_of(self, step: Step) -> Callable[..., Any]:
        """What a step does, given parameters, state and, where it has one, its upload."""
        kind, num_rows, form = step
        if not kind.is_launched:
            return partial(head, self.shape, form, num_rows)
        layout = self.layout((kind, num_rows))
        compute = PROGRAMS[kind].step(self.shape, self.backend, form)
        return lambda parameters, state, packed: compute(parameters, state, layout.unpack(packed))

    def _lower_writer(self, name: str) -> jax.stages.Lowered:
        writer = WRITERS[name]
        layout = writer.layout(self.shape)

        def call(state: DeviceState, packed: jax.Array) -> DeviceState:
            return writer.write(state, layout.unpack(packed))

        call.__name__ = name
        packed_type = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
        return self.target.lower(call, (self.state_type, packed_type), donated=0)


def stage_scope(kind: LaunchKind) -> str:
    """The name of a whole step in profiles: recurrent, prefill, score or head."""
    return kind.name.lower()
