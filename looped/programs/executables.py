"""Compiled steps, one per launch kind and row bucket, made ahead of time.

An executable is called directly: a wrong shape is an error, never a silent compilation. The set is
fixed by shapes alone, so engines of equal shape can share one.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from looped.device.state import DeviceState, StateShape
from looped.progress import track
from looped.sched import (
    Ladder,
    LaunchKind,
    SchedulerConfig,
    bucket_for,
    prefill_pads_no_more,
)
from looped.sched import ladders_for as ladders_for  # its callers find it beside the rungs

from .compile_target import THIS_MACHINE, CompileTarget
from .head import coda, score
from .layouts import (
    PackedLayout,
    coda_layout,
    prefill_layout,
    recurrent_layout,
    score_layout,
    slot_layout,
)
from .logit_edits import write_slot
from .passes import Parameters, prefill, recurrent

LAYOUTS: dict[LaunchKind, Callable[[StateShape, int], PackedLayout[Any]]] = {
    LaunchKind.RECURRENT: recurrent_layout,
    LaunchKind.PREFILL: prefill_layout,
    LaunchKind.CODA: coda_layout,
    LaunchKind.SCORE: score_layout,
}

Rung = tuple[LaunchKind, int]
"""A launch kind and its number of rows, padding included."""


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
            self._layouts[rung] = LAYOUTS[kind](self.shape, num_rows)
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
        step = self._step(rung[0])

        def call(leaves: list[jax.Array], state: DeviceState, packed: jax.Array) -> Any:
            with jax.named_scope(stage_scope(rung[0])):
                return step(jax.tree.unflatten(self._tree, leaves), state, layout.unpack(packed))

        # The module's name in profiles and dumps.
        call.__name__ = f"{stage_scope(rung[0])}_{rung[1]}"
        packed_type = jax.ShapeDtypeStruct((layout.size,), jnp.int32)
        return self.target.lower(call, (self._leaf_types, self.state_type, packed_type), donated=1)

    def _step(self, kind: LaunchKind) -> Callable[..., Any]:
        if kind.runs_layers:
            step = recurrent if kind is LaunchKind.RECURRENT else prefill
            return partial(step, self.shape, self.backend)
        return partial(coda if kind is LaunchKind.CODA else score, self.shape)


def stage_scope(kind: LaunchKind) -> str:
    """The name of a whole step in profiles: recurrent, prefill, coda or score."""
    return kind.name.lower()


def all_rungs(ladders: dict[LaunchKind, Ladder]) -> list[Rung]:
    """Every rung of every ladder."""
    return [(kind, rows) for kind, ladder in ladders.items() for rows in ladder]


def reachable_rungs(
    ladders: dict[LaunchKind, Ladder],
    config: SchedulerConfig,
    prompt_lengths: list[int],
    *,
    has_scores: bool,
) -> list[Rung]:
    """The rungs that a closed set of requests can reach, for callers that know theirs.

    Args:
        ladders: all of the engine's.
        config: limits of concurrency and chunk.
        prompt_lengths: tokens of each prompt, once per sample.
        has_scores: whether any of the prompts is scored.
    """
    num_seqs = min(len(prompt_lengths), config.max_num_seqs)
    longest = sorted(prompt_lengths, reverse=True)[:num_seqs]
    num_prompt_rows = sum(min(length, config.chunk_size) for length in longest)
    # Several passes run one prompt item a request, a single one as many as are under way.
    most_tokens = config.chunk_size * config.max_window(config.chosen_policy)
    most_rows = {
        LaunchKind.RECURRENT: sum(min(length, most_tokens) for length in longest) + num_seqs,
        LaunchKind.PREFILL: num_prompt_rows,
        LaunchKind.CODA: num_seqs,
        LaunchKind.SCORE: int(has_scores),
    }
    reachable = {
        (kind, bucket_for(ladder, num_rows))
        for kind, ladder in ladders.items()
        for num_rows in range(1, min(most_rows[kind], ladder[-1]) + 1)
        if kind is not LaunchKind.PREFILL or _runs_as_prefill(num_rows, config)
    }
    return [rung for rung in all_rungs(ladders) if rung in reachable]


def _runs_as_prefill(num_rows: int, config: SchedulerConfig) -> bool:
    """Whether the policy ever runs so many prompt rows through several depths in one launch."""
    return config.chosen_policy.runs_all_depths or prefill_pads_no_more(
        num_rows, config.budget, config.chunk_size, config.max_num_seqs
    )
