"""What there is to compile: an engine's shapes from a config.json and options, without weights."""

from dataclasses import dataclass
from pathlib import Path

import jax

from looped.config import ModelConfig
from looped.engine_config import EngineConfig
from looped.errors import UsageError
from looped.executables import Executables, Rung, all_rungs, ladders_for
from looped.loading import DTYPES
from looped.models import OuroModel
from looped.planning import plan_absent_gpu, plan_scheduler
from looped.sched import Ladder, LaunchKind, bucket_for
from looped.state import StateShape
from looped.steps import Parameters, lookahead_head

from .targets import Target

JAX_MEMORY_SHARE = 0.75
"""Of a GPU's memory, what JAX takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise."""
ASSUMED_WORKSPACE = 2**29
"""Temporary bytes that the pool leaves free; on a GPU that is there they are measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An engine on a target, as far as compilation sees it."""

    config: EngineConfig
    shape: StateShape
    ladders: dict[LaunchKind, Ladder]
    dtype: str

    def executables(self, target: Target, *, backend: str, layers: str) -> Executables:
        """The engine's own steps, for the target."""
        parameters = abstract_parameters(self.shape.config, self.dtype, layers)
        return Executables(self.shape, parameters, backend=backend, target=target.compile_target)


def make_plan(model: Path, config: EngineConfig, target: Target, *, dtype: str) -> Plan:
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
    model_config = ModelConfig.from_file(model / "config.json" if model.is_dir() else model)
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
    return Plan(config=config, shape=shape, ladders=ladders, dtype=dtype)


def abstract_parameters(config: ModelConfig, dtype: str, layers: str) -> Parameters:
    """Parameters as shapes and types."""
    return Parameters(
        model=OuroModel.abstract(config, DTYPES[dtype], is_stacked=layers == "scanned"),
        lookahead_head=jax.eval_shape(lambda: lookahead_head(config.hidden_size, 0)),
    )


def default_rungs(plan: Plan) -> list[Rung]:
    """One of each kind of work: all slots decoding, the common mixed launch, and the widest."""
    recurrent = plan.ladders[LaunchKind.RECURRENT]
    slots = plan.shape.max_num_seqs
    mixed = min(slots + plan.shape.chunk_size, recurrent[-1])
    rungs = [(LaunchKind.RECURRENT, bucket_for(recurrent, rows)) for rows in (slots, mixed)]
    rungs += [(kind, ladder[-1]) for kind, ladder in plan.ladders.items()]
    return [rung for rung in all_rungs(plan.ladders) if rung in rungs]


def parse_rungs(plan: Plan, texts: list[str]) -> list[Rung]:
    """Rungs from "recurrent:16" and the like, or from "all".

    Raises:
        UsageError: anything that is not a rung of the plan's ladders.
    """
    if texts == ["all"]:
        return all_rungs(plan.ladders)
    return [_parse_rung(plan, text) for text in texts]


def _parse_rung(plan: Plan, text: str) -> Rung:
    name, _, rows = text.partition(":")
    ladders = {kind.name.lower(): (kind, ladder) for kind, ladder in plan.ladders.items()}
    kind, ladder = ladders.get(name, (None, ()))
    if kind is None or not rows.isdecimal() or int(rows) not in ladder:
        known = "; ".join(
            f"{name}:{','.join(map(str, ladder))}" for name, (_, ladder) in ladders.items()
        )
        raise UsageError(f"--bucket takes all or KIND:ROWS of {known}; got {text!r}")
    return kind, int(rows)
