"""`looped aot`: compile the engine's steps for a GPU that is not there."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from looped.config import LAYER_FORMS
from looped.engine.options import EngineConfig
from looped.errors import UsageError

from .checkpoints import Dtype
from .options import with_config_options

logger = logging.getLogger(__name__)

FILE_WIDTH = 240
"""Columns of a table that does not go to a terminal."""


@with_config_options(engine_config=EngineConfig)
def aot(
    *,
    target: Annotated[list[str], typer.Option(help="GPU: h200 or a100; repeatable.")],
    model: Annotated[Path, typer.Option(help="A config.json, or a folder with one.")],
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:ROWS",
            help="Step to compile, such as recurrent:16; repeatable; `all` for every one. By "
            "default one for each kind of work; of unrolled layers, which compile slowly, only "
            "decoding, but with the default backend.",
        ),
    ] = None,
    attention_backend: Annotated[
        list[str] | None,
        typer.Option(help="Attention backend; repeatable. By default every one."),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(help="unrolled or scanned; repeatable. By default both."),
    ] = None,
    context: Annotated[
        int, typer.Option(min=1, help="Keys per sequence, for the formulas of attention.")
    ] = 4096,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights.")] = Dtype.bfloat16,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per step.")] = False,
    engine_config: EngineConfig,
) -> None:
    """Compile the engine's steps for a GPU that is not there, and show what they take.

    Needs neither weights nor a GPU; the times are formulas, not measurements. Exit status 1: a
    step does not compile, a kernel spills or asks for too much shared memory, or the device state
    is not updated in place.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's remarks about a missing driver
    import jax
    from rich.console import Console

    jax.config.update("jax_platforms", "cpu")  # the plugin would look for a GPU
    from looped.aot import (
        Assembler,
        compile_step,
        load_target,
        make_absent_engine,
        parse_rungs,
        remarks_of,
        steps_to_compile,
        table_of,
        title_of,
    )
    from looped.pallas_kernels import BACKENDS
    from looped.progress import track

    backends = checked("attention-backend", attention_backend, tuple(BACKENDS))
    forms = checked("layers", layers, LAYER_FORMS)
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    has_failed = False
    for gpu in [load_target(name) for name in dict.fromkeys(target)]:
        engine = make_absent_engine(model, engine_config, gpu, dtype=dtype)
        keys = min(context, engine.shape.max_model_len)
        assembler = Assembler(gpu.architecture)
        if assembler.path is None:
            logger.warning("no ptxas: registers and spills are not known; pip install triton")
        rungs = parse_rungs(engine, bucket) if bucket else None
        steps = [
            (executables, step)
            for backend, layers, rung in steps_to_compile(engine, backends, forms, rungs)
            for executables in (engine.executables(gpu, backend=backend, layers=layers),)
            for step in executables.steps([rung])
        ]
        reports = []
        for executables, step in track(steps, f"compiling for {gpu.name}"):
            reports.append(compile_step(executables, step, gpu, assembler, keys))
            if as_json:
                print(json.dumps(reports[-1].to_json()), flush=True)
        if not as_json:
            console.print(title_of(engine, gpu, keys))
            console.print(table_of(reports))
        for remark in remarks_of(reports):
            logger.warning("%s", remark)
        has_failed |= any(report.failures for report in reports)
    if has_failed:
        raise typer.Exit(1)


def checked(name: str, given: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names that were given, each once, or all; UsageError for one that is not known."""
    for value in given or ():
        if value not in known:
            raise UsageError(f"--{name} must be one of {', '.join(known)}; got {value!r}")
    return tuple(dict.fromkeys(given)) if given else known
