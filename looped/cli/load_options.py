"""Options of benchmarks that load servers, and what comes of them: prompts, rates, pictures."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.errors import UsageError

if TYPE_CHECKING:
    from looped.measure.arrivals import Sample

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


def check_rates(rates: Iterable[float]) -> None:
    """UsageError for a rate that is none."""
    for rate in rates:
        if not 0 < rate < float("inf"):
            raise UsageError(f"--rate must be above 0 requests per second, and finite; got {rate}")


def made_up_prompts(
    vocab_size: int | None, *, num_requests: int, max_model_len: int | None, **sizes: int
) -> Callable[[str], "Sample"]:
    """Random prompts of a run, by its name; None is what a server does not say."""
    from looped.measure.arrivals import Sample, random_prompts

    length = sizes["prompt_tokens"] + sizes["output_tokens"]
    if max_model_len is not None and length > max_model_len:
        raise UsageError(
            f"prompt and output of a request have {sizes['prompt_tokens']} + "
            f"{sizes['output_tokens']} tokens, and the server takes {max_model_len} "
            "(max_model_len); lower --prompt-tokens or --output-tokens"
        )
    if vocab_size is None:
        raise UsageError("the server does not say its vocabulary's size; give it: --vocab-size V")
    return lambda name: Sample(
        random_prompts(num_requests, vocab_size=vocab_size, name=name, **sizes)
    )


def dataset_prompts(
    file: Path, tokenizer: Path, *, num_requests: int, seed: int, **limits: int
) -> Callable[[str], "Sample"]:
    """Prompts of a run out of a file, by the run's name."""
    from looped.bench.serve.sharegpt import Lengths, draw_prompts, read_exchanges
    from looped.text.tokenizer import Tokenizer

    lengths = Lengths(**limits)
    if not tokenizer.is_dir():
        raise UsageError(
            f"--dataset needs the model's tokenizer, and {tokenizer} is no folder; give it: "
            "--tokenizer DIR"
        )
    encode = Tokenizer.from_folder(tokenizer).encode
    exchanges = read_exchanges(file)
    return lambda name: draw_prompts(
        exchanges, encode, num_requests, lengths=lengths, seed=seed, name=name
    )


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
