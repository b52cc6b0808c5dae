"""What there is to compile: an engine's shapes from a config.json and options, without weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from looped.config import ModelConfig
from looped.device.state import StateShape
from looped.engine.options import EngineConfig
from looped.engine.sizes import plan_absent_gpu, plan_scheduler
from looped.errors import UsageError
from looped.loading import DTYPES
from looped.models import family_of, read_config
from looped.pallas_kernels import AUTO, resolve_backend
from looped.process.jax_options import with_own_jax_options
from looped.programs.executables import Executables
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.sched import Ladder, LaunchKind, Rung, all_rungs, bucket_for, ladders_for

from .targets import Target

JAX_MEMORY_SHARE = 0.75
"""Of a GPU's memory, what JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""
ASSUMED_WORKSPACE = 2**29
"""Temporary bytes that the pool leaves free; on a GPU that is there they are measured."""

Step = tuple[str, str, Rung]
"""Attention backend, form of the layers, and rung."""


@dataclass(frozen=True, kw_only=True)
class AbsentEngine:
    """An engine on a target, as far as compilation sees it."""

    config: EngineConfig
    shape: StateShape
    ladders: dict[LaunchKind, Ladder]
    dtype: str

    @with_own_jax_options
    def executables(self, target: Target, *, backend: str, layers: str) -> Executables:
        """The engine's own steps, for the target."""
        parameters = abstract_parameters(self.shape.config, self.dtype, layers)
        return Executables(self.shape, parameters, backend=backend, target=target.compile_target)


@with_own_jax_options
def make_absent_engine(
    model: Path, config: EngineConfig, target: Target, *, dtype: str
) -> AbsentEngine:
    """Sizes of an engine on the target.

    Args:
        model: a config.json, or a folder with one.
        config: the engine's options; its attention backend and layers are not read.
        target: the GPU whose memory the KV pool is to fill.
        dtype: of weights and rows.

    Raises:
        LoopedError: no such model, no memory for a useful pool, or options that contradict.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    model_config = read_config(model / "config.json" if model.is_dir() else model)
    weights = jax.tree.leaves(abstract_parameters(model_config, dtype, "unrolled"))
    shape = plan_absent_gpu(
        config,
        model_config,
        dtype,
        bytes_limit=int(target.memory_bytes * JAX_MEMORY_SHARE),
        bytes_in_use=sum(leaf.size * leaf.dtype.itemsize for leaf in weights),
        workspace=ASSUMED_WORKSPACE,
    )
    ladders = ladders_for(plan_scheduler(config, shape), is_deterministic=config.deterministic)
    return AbsentEngine(config=config, shape=shape, ladders=ladders, dtype=dtype)


def abstract_parameters(config: ModelConfig, dtype: str, layers: str) -> Parameters:
    """Parameters as shapes and types."""
    model_class = family_of(config).model_class()
    return Parameters(
        model=model_class.abstract(config, DTYPES[dtype], is_stacked=layers == "scanned"),
        lookahead=jax.eval_shape(lambda: LookaheadHeads.create(config, seed=0)),
    )


def default_rungs(engine: AbsentEngine) -> list[Rung]:
    """One of each kind of work: all slots decoding, the common mixed launch, and the widest."""
    mixed = _pass_rung(engine, engine.shape.max_num_seqs + engine.shape.chunk_size)
    rungs = [decode_rung(engine), mixed]
    rungs += [(kind, ladder[-1]) for kind, ladder in engine.ladders.items()]
    return [rung for rung in all_rungs(engine.ladders) if rung in rungs]


def decode_rung(engine: AbsentEngine) -> Rung:
    """The pass with all slots decoding."""
    return _pass_rung(engine, engine.shape.max_num_seqs)


def _pass_rung(engine: AbsentEngine, num_rows: int) -> Rung:
    """The pass over so many rows, decode rows among them, or the widest one."""
    kind = next(kind for kind in engine.ladders if kind.carries_decode)
    ladder = engine.ladders[kind]
    return kind, bucket_for(ladder, min(num_rows, ladder[-1]))


def steps_to_compile(
    engine: AbsentEngine,
    backends: Sequence[str],
    forms: Sequence[str],
    rungs: Sequence[Rung] | None,
) -> list[Step]:
    """Backend, layer form and rung of each step.

    Both forms launch the same attention kernels, and unrolled layers take five times as long to
    compile. So where both are asked for and rungs are not, `default_rungs` are for the scanned
    form, and for what an engine on a GPU launches by default; unrolled layers decode only.

    Args:
        engine: whose ladders have the rungs.
        backends: attention backends by name.
        forms: of the layers.
        rungs: None: those above; else each with every backend and form.
    """
    default_backend = resolve_backend(AUTO, "gpu")
    steps: list[Step] = []
    for backend in backends:
        for form in forms:
            is_whole = form == "scanned" or "scanned" not in forms or backend == default_backend
            some = default_rungs(engine) if is_whole else [decode_rung(engine)]
            steps += [(backend, form, rung) for rung in (some if rungs is None else rungs)]
    # Steps of the LM head have neither attention nor layers: once is enough.
    heads = {rung: (backend, form, rung) for backend, form, rung in reversed(steps)}
    return [step for step in steps if step[2][0].runs_layers or heads[step[2]] == step]


def parse_rungs(engine: AbsentEngine, texts: list[str]) -> list[Rung]:
    """Rungs from "recurrent:16" and the like, or from "all".

    Raises:
        UsageError: anything that is not a rung of its ladders.
    """
    if texts == ["all"]:
        return all_rungs(engine.ladders)
    return [_parse_rung(engine, text) for text in texts]


def _parse_rung(engine: AbsentEngine, text: str) -> Rung:
    name, _, rows = text.partition(":")
    ladders = {kind.name.lower(): (kind, ladder) for kind, ladder in engine.ladders.items()}
    kind, ladder = ladders.get(name, (None, ()))
    if kind is None or not rows.isdecimal() or int(rows) not in ladder:
        known = "; ".join(
            f"{name}:{','.join(map(str, ladder))}" for name, (_, ladder) in ladders.items()
        )
        raise UsageError(f"--bucket takes all or KIND:ROWS of {known}; got {text!r}")
    return kind, int(rows)
