"""`looped bench replay`: the same arrivals to a server of each policy."""

from pathlib import Path
from typing import Annotated

import typer

from looped.engine.options import EngineConfig

from .checkpoints import Dtype
from .interrupts import ended_by_sigterm
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
from .options import BenchProfileFolder, with_config_options
from .results import AsJson, HasPlots, command_line, print_result, require_plots


@with_config_options(engine_config=EngineConfig)
def replay(
    *,
    model: Annotated[Path, typer.Option(help="Model folder, converted or Hugging Face.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make, for logs and results.")],
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests per second, Poisson.")] = DEFAULT_RATE,
    num_requests: NumRequests = 200,
    prompt_tokens: PromptTokens = 256,
    output_tokens: OutputTokens = 128,
    dataset: DatasetFile = None,
    min_tokens: MinTokens = 4,
    max_prompt_tokens: MaxPromptTokens = 1024,
    max_total_tokens: MaxTotalTokens = 2048,
    slo_ttft: SloTtft = None,
    slo_itl: SloItl = None,
    slo_share: SloShare = 0.9,
    max_queue: MaxQueue = 2.0,
    max_lag: MaxLag = 0.1,
    timeout: Timeout = 600.0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a server may take until it is ready.")
    ] = 900.0,
    seed: Annotated[int, typer.Option(min=0, help="Of arrivals and prompts.")] = 0,
    has_plots: HasPlots = True,
    profile: BenchProfileFolder = None,
    as_json: AsJson = False,
    engine_config: EngineConfig,
) -> None:
    """Play one list of arrivals to `looped serve` under atomic, separate and mixed, side by side.

    A server of each policy is started, loaded and stopped in turn. If a rule of validity is broken,
    the command says which and exits with 1.
    """
    from looped.bench.replay.benchmark import HEAD, Replay, judge_arms, play_arms, profile_arms
    from looped.bench.replay.report import replay_page
    from looped.bench.serve.load_summary import Judgement
    from looped.bench.serve.prompt_source import PromptSource
    from looped.bench.serve.served_request import Objective
    from looped.bench.serve.sharegpt import Lengths
    from looped.measure.arrivals import check_rate, poisson_arrivals
    from looped.measure.machine import describe_host, devices_seen_apart
    from looped.measure.results_folder import check_folders, make_folder, write_results
    from looped.measure.violation import check_valid
    from looped.models import read_config
    from looped.record.profiling import check_profile_folder

    judgement = Judgement(
        objective=Objective(slo_ttft, slo_itl),
        share=slo_share,
        max_lag=max_lag,
        max_queue=max_queue,
    )
    check_rate(rate)
    check_folders(out, profile)
    if has_plots:
        require_plots()
    check_profile_folder(profile)
    config = read_config(model / "config.json")
    longest = engine_config.max_model_len or config.max_position_embeddings
    prompts = PromptSource(
        num_requests=num_requests,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        dataset=dataset,
        lengths=Lengths(
            min_tokens=min_tokens,
            max_prompt_tokens=max_prompt_tokens,
            max_total_tokens=max_total_tokens,
        ),
    )
    sample = prompts.sampler(
        vocab_size=config.vocab_size, max_model_len=longest, tokenizer=model, seed=seed
    )("replay")
    plan = Replay(
        model=model,
        dtype=dtype,
        engine=engine_config,
        arrivals=poisson_arrivals(sample.prompts, rate, seed=seed),
        rate=rate,
        timeout=timeout,
        start_timeout=start_timeout,
    )
    plan.check(config)
    description = {
        **HEAD,
        **describe_host(),
        "devices": devices_seen_apart(),
        "command": command_line(),
        "model": str(model),
        "dataset": None if dataset is None else str(dataset),
        "dropped": {"replay": sample.dropped} if sample.dropped else None,
        "rate": rate,
        "seed": seed,
    }
    make_folder(out, description)
    played = {}
    with ended_by_sigterm():
        for arm, run, exit_code in play_arms(plan, out):
            played[arm] = run, exit_code
            result = judge_arms(played, judgement)
            page = "\n".join(replay_page(description, result)) + "\n"
            write_results(out, result.to_json(description), page)
        if has_plots:
            draw_loads(out, result.arms, "arm")
        print_result(result.to_json(description), page, as_json=as_json)
        if profile is not None:
            profile_arms(plan, out, profile)
    check_valid(result.violations)
