"""The stages as commands run them: a run's folder, training, and the finished model.

Each leaves a complete model in OUT/model, a Hugging Face folder, which the next stage starts from.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from looped.convert import write_lookahead_gate
from looped.convert.staging import check_destination
from looped.errors import LoopedError, UsageError
from looped.loading import load_folder
from looped.models import num_parameters, read_config
from looped.models.looped_model import LoopedModel
from looped.process.jax_options import with_own_jax_options

from .batches import Batches
from .config import (
    FrozenBackboneConfig,
    GateConfig,
    LookaheadConfig,
    PretrainConfig,
    ShapeConfig,
    TrainingConfig,
)
from .digests import model_digests, text_digest
from .export import export_changed, export_model, replace_exit_gate
from .gate_training import train_gate, train_lookahead
from .initial import initial_model
from .loss_plot import draw_losses
from .pretraining import pretrain
from .run_folder import RunFolder, check_startable
from .sources import OpenSource, Source, check_fits

logger = logging.getLogger(__name__)

Change = Callable[[Path], None]
"""Puts what was learned into a copy of the model's folder."""


@with_own_jax_options
def pretrain_stage(
    out: Path,
    source: OpenSource,
    shape: ShapeConfig,
    config: PretrainConfig,
    *,
    resume: bool = False,
) -> Path:
    """Pre-trains a new model; returns OUT/model, stored in bfloat16.

    Args:
        out: the run's folder.
        source: of examples; opened when the rest has been checked.
        shape: of the model.
        config: of the run.
        resume: go on where the folder's run ended.

    Raises:
        LoopedError: the folder holds another run, or the loss is not finite.
    """
    check_startable(out, resume=resume)
    _check_length(config, shape.max_position_embeddings)
    examples = source()
    model_config = shape.model_config(examples.vocab_size)
    options = {"stage": "pretrain", **asdict(shape), **_options(examples, config)}
    with RunFolder.start(out, options, resume=resume) as run:
        model = initial_model(model_config, config.seed)
        logger.info("training %d parameters", num_parameters(model.config))
        model = pretrain(run, config, model, _batches(examples, config))
        export_model(model, run.model, examples.write_companions, overwrite=True)
        draw_losses(run)
        return run.model


@with_own_jax_options
def gate_stage(
    out: Path, model: Path, source: OpenSource, config: GateConfig, *, resume: bool = False
) -> Path:
    """Trains the exit gate of a model; returns OUT/model, in all else the model as it was.

    Args:
        out: the run's folder.
        model: folder of a looped model, of either form; it is only read.
        source: of examples, in the model's tokenizer; opened when the rest has been checked.
        config: of the run.
        resume: go on where the folder's run ended.

    Raises:
        LoopedError: the model is not sound, has another tokenizer, no exit gate or too few loops,
            or the folder holds another run.
    """
    check_startable(out, resume=resume)
    _check_teacher(model, 2, "a gate")

    def learn(run: RunFolder, backbone: LoopedModel, batches: Batches) -> Change:
        gate = train_gate(run, config, backbone, batches)
        weight, bias = np.asarray(gate["weight"]), np.asarray(gate["bias"])
        return lambda folder: replace_exit_gate(folder, weight, bias)

    return _frozen_stage("gate", out, model, source, config, learn, resume=resume)


@with_own_jax_options
def lookahead_stage(
    out: Path, model: Path, source: OpenSource, config: LookaheadConfig, *, resume: bool = False
) -> Path:
    """Trains a look-ahead gate; returns OUT/model, the model as it was with the new gate beside it.

    Arguments and errors as for `gate_stage`.
    """
    check_startable(out, resume=resume)
    _check_teacher(model, 3, "looking ahead")

    def learn(run: RunFolder, backbone: LoopedModel, batches: Batches) -> Change:
        gate = train_lookahead(run, config, backbone, batches)
        return lambda folder: write_lookahead_gate(folder, gate)

    return _frozen_stage("lookahead", out, model, source, config, learn, resume=resume)


def _frozen_stage(
    stage: str,
    out: Path,
    model: Path,
    source: OpenSource,
    config: FrozenBackboneConfig,
    learn: Callable[[RunFolder, LoopedModel, Batches], Change],
    *,
    resume: bool,
) -> Path:
    """Everything quick is checked before examples are read and weights are loaded."""
    check_startable(out, resume=resume)
    check_destination(out / "model", source=model, overwrite=True)
    model_config = read_config(model / "config.json")
    _check_length(config, model_config.max_position_embeddings)
    examples = source()
    check_fits(examples, model, model_config)
    loaded = load_folder(model, dtype=config.dtype)
    inputs = {"model": str(model), **model_digests(model)}
    options = {"stage": stage, **inputs, **_options(examples, config)}
    with RunFolder.start(out, options, resume=resume) as run:
        change = learn(run, loaded.model, _batches(examples, config))
        export_changed(model, run.model, change, overwrite=True)
        draw_losses(run)
        return run.model


def _check_teacher(model: Path, least: int, what: str) -> None:
    config = read_config(model / "config.json")
    num_loops = config.num_loops
    if not config.has_gate:
        raise LoopedError(
            f"{model} has no exit gate, and {what} takes one; take a model that has a gate"
        )
    if num_loops < least:
        raise LoopedError(
            f"{model} runs {num_loops} loop{'s' * (num_loops > 1)}, and {what} takes at least "
            f"{least}; take a model of more loops"
        )


def _options(source: Source, config: TrainingConfig) -> dict[str, Any]:
    """What a run remembers of its examples and options."""
    return {
        "source": source.name,
        "data_sha256": source.data_sha256,
        "tokenizer_sha256": text_digest(source.tokenizer_json),
        **asdict(config),
    }


def _check_length(config: TrainingConfig, max_position_embeddings: int) -> None:
    if config.sequence_length > max_position_embeddings:
        raise UsageError(
            f"sequence_length must be at most the model's max_position_embeddings: "
            f"{config.sequence_length} > {max_position_embeddings}; lower --sequence-length"
        )


def _batches(source: Source, config: TrainingConfig) -> Batches:
    return Batches(
        source.draw,
        batch_size=config.batch_size,
        sequence_length=config.sequence_length,
        seed=config.seed,
        prompt_weight=config.prompt_weight,
    )
