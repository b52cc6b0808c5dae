"""`looped bench serve`: an open-loop load on a running server."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from .load_options import (
    DEFAULT_RATE,
    DatasetFile,
    MaxLag,
    MaxPromptTokens,
    MaxQueue,
    MaxTotalTokens,
    MinTokens,
    NumRequests,
    OutputTokens,
    PromptTokens,
    SloItl,
    SloShare,
    SloTtft,
    Timeout,
    draw_loads,
)
from .results import AsJson, HasPlots, command_line, print_result, require_plots


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
    max_queue: MaxQueue = 2.0,
    longest_run: Annotated[
        float,
        typer.Option(
            min=1, metavar="SECONDS", help="A search tries no rate at which arrivals take longer."
        ),
    ] = 3600.0,
    max_lag: MaxLag = 0.1,
    timeout: Timeout = 600.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="LOOPED_API_KEY", help="Sent as a bearer's token.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 0,
    prompt_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of the prompts.  [another one every time, so that no prefix cache has them]",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to make, for results and every request's times."),
    ] = None,
    has_plots: HasPlots = True,
    as_json: AsJson = False,
) -> None:
    """Load a running server with requests that come on time, however slow it is.

    Any server with OpenAI's streaming /v1/completions, token-id prompts and ignore_eos will do.
    A run whose client was late, or of which no request ends well, is invalid, and the command exits
    with 1; so is a search whose answer rests on one.
    """
    from looped.bench.serve.endpoint import Endpoint
    from looped.bench.serve.load_summary import Judgement
    from looped.bench.serve.open_loop import CapacitySearch, OpenLoopLoad, run_load
    from looped.bench.serve.prompt_source import PromptSource
    from looped.bench.serve.report import serve_page
    from looped.bench.serve.served_request import Objective
    from looped.bench.serve.sharegpt import Lengths
    from looped.measure.machine import describe_host
    from looped.measure.results_folder import check_folders
    from looped.measure.violation import check_valid

    load = OpenLoopLoad(
        endpoint=Endpoint(url=url, model=model, api_key=api_key, timeout=timeout),
        prompts=PromptSource(
            num_requests=num_requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            dataset=dataset,
            lengths=Lengths(
                min_tokens=min_tokens,
                max_prompt_tokens=max_prompt_tokens,
                max_total_tokens=max_total_tokens,
            ),
        ),
        judgement=Judgement(
            objective=Objective(slo_ttft, slo_itl),
            share=slo_share,
            max_lag=max_lag,
            max_queue=max_queue,
        ),
        rates=rate or [DEFAULT_RATE],
        search=(
            CapacitySearch(precision=precision, longest_run=longest_run) if find_capacity else None
        ),
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        seed=seed,
        prompt_seed=secrets.randbits(32) if prompt_seed is None else prompt_seed,
    )
    check_folders(out)
    if out is not None and has_plots:
        require_plots()
    facts = {**describe_host(), "command": command_line(hidden=api_key)}
    description, result = run_load(load, facts, out)
    if out is not None and has_plots:
        draw_loads(out, [run.name for run in result.runs], "run")
    page = "\n".join(serve_page(description, result)) + "\n"
    print_result(result.to_json(description), page, as_json=as_json)
    check_valid(result.violations)
