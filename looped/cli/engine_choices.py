"""How an engine is built for a benchmark: options that `interference` and `throughput` share."""

from enum import StrEnum
from typing import Annotated

import typer

from looped.sched.config import MAX_RUN_AHEAD

from .checkpoints import Dtype


class Layers(StrEnum):
    """Forms of the layers."""

    unrolled = "unrolled"
    scanned = "scanned"


RunDtype = Annotated[
    Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
]
CacheDtype = Annotated[
    str | None, typer.Option(help="Type of cached keys and values; by default the engine's.")
]
AttentionBackend = Annotated[str, typer.Option(help="Attention backend.")]
LayerForm = Annotated[
    Layers | None,
    typer.Option(help="Form of the layers in a compiled step; by default the platform's best."),
]
RunAhead = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_RUN_AHEAD,
        help="Launches under way before the oldest is read; by default the engine's.",
    ),
]
BlockSize = Annotated[int, typer.Option(min=1, help="Positions in a KV block.")]
PromptSeed = Annotated[int, typer.Option(min=0, help="Of the prompts.")]
