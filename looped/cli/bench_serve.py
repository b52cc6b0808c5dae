"""`looped bench serve`: an open-loop load on a running server."""

import json
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.errors import UsageError

from .bench import AsJson, require_plots

if TYPE_CHECKING:
    from looped.bench.arrivals import Sample

DEFAULT_RATE = 1.0

NumRequests = Annotated[int, typer.Option(min=1, help="Requests of a run.")]
PromptTokens = Annotated[int, typer.Option(min=1, help="Length of a made-up prompt.")]
OutputTokens = Annotated[
    int, typer.Option(min=1, help="Tokens that a made-up prompt's answer has, to the token.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of arrivals and prompts.")]
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
    typer.Option(metavar="SECONDS", help="A run in which the client was later is invalid."),
]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that a request may take.")]
HasPlots = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG files.")]


def serve_load(
    url: Annotated[str, typer.Option(help="The server's base URL.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Model's name in requests.  [the server's only one]")
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests per second, Poisson; repeat for a run each.  [1]"),
    ] = None,
    find_capacity: Annotated[
        bool,
        typer.Option(
            "--find-capacity",
            help="From --rate on, search for the largest rate that is sustained under the SLO.",
        ),
    ] = False,
    precision: Annotated[
        float, typer.Option(help="Ratio of the rates between which that search ends.")
    ] = 1.1,
    num_requests: NumRequests = 200,
    prompt_tokens: PromptTokens = 256,
    output_tokens: OutputTokens = 128,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=1, help="Made-up prompts have ids below it.  [as the server says]"),
    ] = None,
    dataset: DatasetFile = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the model's tokenizer, for --dataset."),
    ] = None,
    min_tokens: MinTokens = 4,
    max_prompt_tokens: MaxPromptTokens = 1024,
    max_total_tokens: MaxTotalTokens = 2048,
    slo_ttft: SloTtft = None,
    slo_itl: SloItl = None,
    slo_share: SloShare = 0.9,
    max_lag: MaxLag = 0.1,
    timeout: Timeout = 600.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="LOOPED_API_KEY", help="Sent as a bearer's token.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to make, for results and every request's times."),
    ] = None,
    has_plots: HasPlots = True,
    as_json: AsJson = False,
) -> None:
    """Load a running server with requests that come when they come, however slow it is.

    Any server with OpenAI's streaming /v1/completions, token-id prompts and ignore_eos will do.
    A run whose client was late is invalid, and the command exits with 1.
    """
    from looped.bench.capacity import check_search
    from looped.bench.capacity import find_capacity as search
    from looped.bench.load_summary import Judgement
    from looped.bench.machine import describe_host
    from looped.bench.serve_benchmark import (
        ServeBenchmark,
        Target,
        check_valid,
        make_folder,
        to_json,
        write_results,
    )
    from looped.bench.serve_report import serve_page
    from looped.bench.served_request import Objective

    judgement = Judgement(objective=Objective(slo_ttft, slo_itl), share=slo_share, max_lag=max_lag)
    rates = rate or [DEFAULT_RATE]
    check_rates(rates)
    if find_capacity and (len(rates) > 1 or not judgement.has_objective):
        raise UsageError(
            "--find-capacity searches from one --rate on, for --slo-ttft SECONDS, --slo-itl "
            f"SECONDS or both; got {len(rates)} rates, {'an' if judgement.has_objective else 'no'} "
            "SLO"
        )
    if find_capacity:
        check_search(rates[0], precision)
    if out is not None and has_plots:
        require_plots()
    target = Target(url=url, model=model, api_key=api_key, timeout=timeout)
    card = target.card()
    if dataset is None:
        sample = made_up_prompts(
            vocab_size or card.get("vocab_size"),
            num_requests=num_requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seed=seed,
        )
    else:
        sample = dataset_prompts(
            dataset,
            tokenizer or Path(str(card["id"])),
            num_requests=num_requests,
            min_tokens=min_tokens,
            max_prompt_tokens=max_prompt_tokens,
            max_total_tokens=min(max_total_tokens, card.get("max_model_len") or max_total_tokens),
            seed=seed,
        )
    make_folder(out)
    benchmark = ServeBenchmark(target, sample, seed=seed, judgement=judgement, folder=out)
    capacity = None
    if find_capacity:
        capacity = search(benchmark.measure, start=rates[0], precision=precision)
    else:
        for one in rates:
            benchmark.measure(one)
    description = describe_host() | {
        "command": command_line(hidden=api_key),
        "url": url,
        "model": card["id"],
        "dataset": None if dataset is None else str(dataset),
        "dropped": benchmark.dropped or None,
    }
    result = to_json(description, benchmark.runs, judgement, capacity)
    table = "\n".join(serve_page(description, benchmark.runs, judgement, capacity)) + "\n"
    if out is not None:
        write_results(out, result, table)
        if has_plots:
            draw(out, [run.name for run in benchmark.runs], "run")
    print(json.dumps(result) if as_json else table, end="\n" if as_json else "")
    if capacity is None:
        check_valid([str(broken) for run in benchmark.runs for broken in run.violations])


def check_rates(rates: Iterable[float]) -> None:
    """UsageError for a rate that is none."""
    for rate in rates:
        if not 0 < rate < float("inf"):
            raise UsageError(f"--rate must be above 0 requests per second, and finite; got {rate}")


def command_line(*, hidden: str | None = None) -> str:
    """This command, for the record; without its secret."""
    arguments = [
        argument.replace(hidden, "***") if hidden else argument for argument in sys.argv[1:]
    ]
    return shlex.join(["looped", *arguments])


def made_up_prompts(
    vocab_size: int | None, *, num_requests: int, **sizes: int
) -> Callable[[str], "Sample"]:
    """Random prompts of a run, by its name."""
    from looped.bench.arrivals import Sample, random_prompts

    if vocab_size is None:
        raise UsageError("the server does not say its vocabulary's size; give it: --vocab-size V")
    return lambda name: Sample(
        random_prompts(num_requests, vocab_size=vocab_size, name=name, **sizes)
    )


def dataset_prompts(
    file: Path, tokenizer: Path, *, num_requests: int, seed: int, **limits: int
) -> Callable[[str], "Sample"]:
    """Prompts of a run out of a file, by the run's name."""
    from looped.bench.sharegpt import Lengths, draw_prompts, read_exchanges
    from looped.tokenizer import Tokenizer

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


def draw(folder: Path, names: Iterable[str], what: str) -> None:
    """Pictures of the runs' latencies, from their logs."""
    from looped.bench.serve_benchmark import read_requests
    from looped.plots import draw_distributions

    logs = {name: read_requests(folder / f"{name}.jsonl") for name in names}
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
