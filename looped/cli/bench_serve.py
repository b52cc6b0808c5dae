"""`looped bench serve`: an open-loop load on a running server."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from looped.errors import UsageError

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
    check_rates,
    dataset_prompts,
    draw_loads,
    made_up_prompts,
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
    """Load a running server with requests that come when they come, however slow it is.

    Any server with OpenAI's streaming /v1/completions, token-id prompts and ignore_eos will do.
    A run whose client was late, or of which no request ends well, is invalid, and the command exits
    with 1; so is a search whose answer rests on one.
    """
    from looped.bench.serve.benchmark import HEAD, ServeBenchmark, ServeResult
    from looped.bench.serve.endpoint import Endpoint
    from looped.bench.serve.load_summary import Judgement
    from looped.bench.serve.report import serve_page
    from looped.bench.serve.served_request import Objective
    from looped.measure.backlog import FEWEST_FOR_GROWTH
    from looped.measure.capacity import check_search
    from looped.measure.capacity import find_capacity as search
    from looped.measure.machine import describe_host
    from looped.measure.results_folder import check_folders, make_folder, write_results
    from looped.measure.violation import check_valid

    judgement = Judgement(
        objective=Objective(slo_ttft, slo_itl),
        share=slo_share,
        max_lag=max_lag,
        max_queue=max_queue,
    )
    rates = rate or [DEFAULT_RATE]
    check_rates(rates)
    if find_capacity and (len(rates) > 1 or not judgement.has_objective):
        raise UsageError(
            "--find-capacity searches from one --rate on, for --slo-ttft SECONDS, --slo-itl "
            f"SECONDS or both; got {len(rates)} rates, {'an' if judgement.has_objective else 'no'} "
            "SLO"
        )
    lowest_rate = num_requests / longest_run
    if find_capacity:
        if rates[0] < lowest_rate:
            raise UsageError(
                f"{num_requests} requests take {num_requests / rates[0]:g} s to arrive at --rate "
                f"{rates[0]:g}; raise the rate, or raise --longest-run {longest_run:g}"
            )
        check_search(rates[0], lowest_rate, precision)
        if num_requests < FEWEST_FOR_GROWTH:
            raise UsageError(
                f"--find-capacity needs runs of at least {FEWEST_FOR_GROWTH} requests, to see "
                f"whether a backlog grows; got --num-requests {num_requests}"
            )
    check_folders(out)
    if out is not None and has_plots:
        require_plots()
    host = describe_host()
    endpoint = Endpoint(url=url, model=model, api_key=api_key, timeout=timeout)
    card = endpoint.card()
    prompt_seed = secrets.randbits(32) if prompt_seed is None else prompt_seed
    max_model_len = card.get("max_model_len")
    if dataset is None:
        sample = made_up_prompts(
            vocab_size or card.get("vocab_size"),
            num_requests=num_requests,
            max_model_len=max_model_len,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seed=prompt_seed,
        )
    else:
        sample = dataset_prompts(
            dataset,
            tokenizer or Path(str(card["id"])),
            num_requests=num_requests,
            min_tokens=min_tokens,
            max_prompt_tokens=max_prompt_tokens,
            max_total_tokens=min(max_total_tokens, max_model_len or max_total_tokens),
            seed=prompt_seed,
        )
    description = {
        **HEAD,
        **host,
        "command": command_line(hidden=api_key),
        "url": url,
        "model": card["id"],
        "dataset": None if dataset is None else str(dataset),
        "seed": seed,
        "prompt_seed": prompt_seed,
    }

    def keep(result: ServeResult) -> None:
        if out is not None:
            page = "\n".join(serve_page(description, result)) + "\n"
            write_results(out, result.to_json(description), page)

    benchmark = ServeBenchmark(
        endpoint,
        sample,
        seed=seed,
        judgement=judgement,
        fewest_requests=FEWEST_FOR_GROWTH if find_capacity else 1,
        folder=out,
        on_run=keep,
    )
    if out is not None:
        make_folder(out, description)
    capacity = None
    if find_capacity:
        capacity = search(
            benchmark.measure, start=rates[0], lowest=lowest_rate, precision=precision
        )
    else:
        for one in rates:
            benchmark.measure(one)
    result = benchmark.result(capacity)
    keep(result)
    if out is not None and has_plots:
        draw_loads(out, [run.name for run in result.runs], "run")
    page = "\n".join(serve_page(description, result)) + "\n"
    print_result(result.to_json(description), page, as_json=as_json)
    check_valid(result.violations)
