"""`looped train …`: a model from nothing, and the gates of one that is there."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.errors import UsageError
from looped.training.config import GateConfig, LookaheadConfig, PretrainConfig, ShapeConfig

from .options import with_config_options

if TYPE_CHECKING:
    from looped.training.sources import OpenSource

train = typer.Typer(
    help="Train looped models: a backbone over all exit depths, then its gates.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Task(StrEnum):
    """Built-in sources of examples."""

    demo = "demo"


Out = Annotated[
    Path, typer.Option(metavar="DIR", help="The run's folder: metrics, checkpoints, the model.")
]
Model = Annotated[
    str, typer.Option(help="The backbone: any looped model, as a folder or a hub id.")
]
TaskName = Annotated[
    Task | None, typer.Option(help="demo: arithmetic problems in words, made as they are needed.")
]
Data = Annotated[
    Path | None,
    typer.Option(help='JSONL instead of a task: {"prompt": text, "completion": text} a line.'),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from DIR's last checkpoint; a run without one is begun anew in any case.",
    ),
]


@train.command()
@with_config_options(shape=ShapeConfig, config=PretrainConfig)
def pretrain(
    *,
    out: Out,
    task: TaskName = None,
    data: Data = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the tokenizer for --data.")
    ] = None,
    resume: Resume = False,
    shape: ShapeConfig,
    config: PretrainConfig,
) -> None:
    """Pre-train a model over all exit depths (first stage); writes DIR/model."""
    from looped.training.stages import pretrain_stage

    if task is not None and tokenizer is not None:
        raise UsageError("a task brings its own tokenizer; leave out --tokenizer")
    source = _source(task, data, tokenizer, config.sequence_length)
    pretrain_stage(out, source, shape, config, resume=resume)


@train.command()
@with_config_options(config=GateConfig)
def gate(
    *,
    model: Model,
    out: Out,
    task: TaskName = None,
    data: Data = None,
    resume: Resume = False,
    config: GateConfig,
) -> None:
    """Train the exit gate of a model whose weights stay (second stage); writes DIR/model."""
    from looped.convert import resolve_model_folder
    from looped.training.run_folder import check_startable
    from looped.training.stages import gate_stage

    _check_source(task, data)
    check_startable(out, resume=resume)  # before a model is downloaded
    folder = resolve_model_folder(model)
    source = _source(task, data, folder, config.sequence_length)
    gate_stage(out, folder, source, config, resume=resume)


@train.command()
@with_config_options(config=LookaheadConfig)
def lookahead(
    *,
    model: Model,
    out: Out,
    task: TaskName = None,
    data: Data = None,
    resume: Resume = False,
    config: LookaheadConfig,
) -> None:
    """Train a gate that sees the exit one loop ahead; writes DIR/model, with the gate beside it."""
    from looped.convert import resolve_model_folder
    from looped.training.run_folder import check_startable
    from looped.training.stages import lookahead_stage

    _check_source(task, data)
    check_startable(out, resume=resume)  # before a model is downloaded
    folder = resolve_model_folder(model)
    source = _source(task, data, folder, config.sequence_length)
    lookahead_stage(out, folder, source, config, resume=resume)


def _source(
    task: Task | None, data: Path | None, tokenizer: Path | None, sequence_length: int
) -> "OpenSource":
    from looped.demo.examples import demo_source
    from looped.training.sources import file_source

    _check_source(task, data)
    if data is None:
        return partial(demo_source, sequence_length)
    if tokenizer is None:
        raise UsageError("--data needs the tokenizer that encodes it; add --tokenizer DIR")
    if not (tokenizer / "tokenizer.json").is_file():
        raise UsageError(
            f"{tokenizer} has no tokenizer.json, which --data is encoded with; name a folder that "
            "has one"
        )
    return partial(file_source, data, tokenizer, sequence_length)


def _check_source(task: Task | None, data: Path | None) -> None:
    if (task is None) == (data is None):
        raise UsageError("give either --task or --data")
