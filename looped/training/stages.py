"""The stages as commands run them: a run's folder, training, and the finished model.

Each leaves a complete model in OUT/model, a Hugging Face folder, which the next stage starts from.
"""

import logging
from dataclasses import asdict
from pathlib import Path

from looped.convert import write_lookahead_gate
from looped.errors import LoopedError
from looped.loading import LoadedModel, load_folder
from looped.models import OuroModel

from .batches import Batches
from .config import GateConfig, LookaheadConfig, PretrainConfig, ShapeConfig, TrainingConfig
from .export import WriteCompanions, companions_of, export_model
from .gate_training import train_gate, train_lookahead
from .initial import initial_model
from .loss_plot import draw_losses
from .pretraining import pretrain
from .run_folder import RunFolder
from .sources import Source

logger = logging.getLogger(__name__)


def pretrain_stage(
    out: Path, source: Source, shape: ShapeConfig, config: PretrainConfig, *, resume: bool = False
) -> Path:
    """Pre-trains a new model; returns OUT/model, stored in bfloat16.

    Args:
        out: the run's folder.
        source: of examples.
        shape: of the model.
        config: of the run.
        resume: go on where the folder's run ended.

    Raises:
        LoopedError: the folder holds another run, or the loss is not finite.
    """
    options = {"stage": "pretrain", "source": source.name, **asdict(shape), **asdict(config)}
    with RunFolder.start(out, options, resume=resume) as run:
        model = initial_model(shape.model_config(source.vocab_size), config.seed)
        logger.info("training %d parameters", model.config.num_parameters)
        model = pretrain(run, config, model, _batches(source, config))
        return _finish(run, model, source.write_companions)


def gate_stage(
    out: Path, model: Path, source: Source, config: GateConfig, *, resume: bool = False
) -> Path:
    """Trains the exit gate of a model; returns OUT/model, in the type that the model is stored in.

    Args:
        out: the run's folder.
        model: folder of any Ouro checkpoint; it is only read.
        source: of examples, in the model's tokenizer.
        config: of the run.
        resume: go on where the folder's run ended.

    Raises:
        LoopedError: the model is not sound, or the folder holds another run.
    """
    loaded = load_folder(model, dtype=config.dtype)
    with _start(out, "gate", model, source, config, resume=resume) as run:
        trained = train_gate(run, config, loaded.model, _batches(source, config))
        return _finish(run, trained, companions_of(model), dtype=_stored_dtype(loaded))


def lookahead_stage(
    out: Path, model: Path, source: Source, config: LookaheadConfig, *, resume: bool = False
) -> Path:
    """Trains a look-ahead gate; returns OUT/model, the model as it was with the new gate beside it.

    Arguments and errors as for `gate_stage`.
    """
    loaded = load_folder(model, dtype=config.dtype)
    if loaded.config.num_loops < 3:
        raise LoopedError(
            f"{model} runs {loaded.config.num_loops} loops; looking ahead takes at least 3"
        )
    with _start(out, "lookahead", model, source, config, resume=resume) as run:
        gate = train_lookahead(run, config, loaded.model, _batches(source, config))

        def write_companions(folder: Path) -> None:
            companions_of(model)(folder)
            write_lookahead_gate(folder, gate)

        return _finish(run, loaded.model, write_companions, dtype=_stored_dtype(loaded))


def _start(
    out: Path, stage: str, model: Path, source: Source, config: TrainingConfig, *, resume: bool
) -> RunFolder:
    options = {"stage": stage, "model": str(model), "source": source.name, **asdict(config)}
    return RunFolder.start(out, options, resume=resume)


def _stored_dtype(loaded: LoadedModel) -> str:
    """The type of the folder's tensors; float32 holds what float16 does."""
    return "bfloat16" if loaded.config.dtype == "bfloat16" else "float32"


def _batches(source: Source, config: TrainingConfig) -> Batches:
    return Batches(
        source.draw,
        batch_size=config.batch_size,
        sequence_length=config.sequence_length,
        seed=config.seed,
        prompt_weight=config.prompt_weight,
    )


def _finish(
    run: RunFolder, model: OuroModel, write_companions: WriteCompanions, *, dtype: str = "bfloat16"
) -> Path:
    draw_losses(run)
    export_model(model, run.model, write_companions, dtype=dtype, overwrite=True)
    return run.model
