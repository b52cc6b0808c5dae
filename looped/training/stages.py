"""The stages as commands run them: a run's folder, training, and the finished model.

Each leaves a complete model in OUT/model, a Hugging Face folder, which the next stage starts from.
"""

import logging
from dataclasses import asdict
from pathlib import Path

from looped.models import OuroModel

from .batches import Batches
from .config import PretrainConfig, ShapeConfig, TrainingConfig
from .export import WriteCompanions, export_model
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
    run = RunFolder.start(out, options, resume=resume)
    model = initial_model(shape.model_config(source.vocab_size), config.seed)
    logger.info("training %d parameters", model.config.num_parameters)
    model = pretrain(run, config, model, _batches(source, config))
    return _finish(run, model, source.write_companions)


def _batches(source: Source, config: TrainingConfig) -> Batches:
    return Batches(
        source.draw,
        batch_size=config.batch_size,
        sequence_length=config.sequence_length,
        seed=config.seed,
        prompt_weight=config.prompt_weight,
    )


def _finish(run: RunFolder, model: OuroModel, write_companions: WriteCompanions) -> Path:
    draw_losses(run)
    export_model(model, run.model, write_companions, overwrite=True)
    return run.model
