"""Options of benchmarks that load servers, and the pictures of their results."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_RATE = 1.0

NumRequests = Annotated[int, typer.Option(min=1, help="Requests of a run.")]
PromptTokens = Annotated[int, typer.Option(min=1, help="Length of a made-up prompt.")]
OutputTokens = Annotated[
    int, typer.Option(min=1, help="Tokens that a made-up prompt's answer has, to the token.")
]
DatasetFile = Annotated[
    Path | None,
    typer.Option(
        "--dataset",
        metavar="FILE",
        help="ShareGPT's JSON: first questions are the prompts, and the answers give the lengths.",
    ),
]
MinTokens = Annotated[
    int, typer.Option(min=1, help="Of a conversation's question and answer, each; else dropped.")
]
MaxPromptTokens = Annotated[int, typer.Option(min=1, help="Of a question; else dropped.")]
MaxTotalTokens = Annotated[
    int, typer.Option(min=2, help="Of question and answer together; else dropped.")
]
SloTtft = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Time to first token at most.")
]
SloItl = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="p99 of a request's gaps between chunks at most."),
]
SloShare = Annotated[
    float, typer.Option(help="Share of requests that must meet both for a rate to be sustained.")
]
MaxLag = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", help="A run in which the client sent or read later is invalid."
    ),
]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")]
MaxQueue = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="Median wait for a first launch, at most, of a rate that is sustained.",
    ),
]


def draw_loads(folder: Path, names: Iterable[str], what: str) -> None:
    """Pictures of the runs' latencies, from their logs."""
    from looped.bench.serve.endpoint import read_served_requests
    from looped.plots import draw_distributions

    logs = {name: read_served_requests(folder / f"{name}.jsonl") for name in names}
    well = {name: [one for one in log if one.failure is None] for name, log in logs.items()}
    draw_distributions(
        folder / "itl.png",
        {name: [gap for one in log for gap in one.gaps] for name, log in well.items()},
        title=f"inter-token latency by {what}",
    )
    draw_distributions(
        folder / "ttft.png",
        {name: [one.ttft for one in log if one.ttft is not None] for name, log in well.items()},
        title=f"time to first token by {what}",
        values_name="requests",
    )
