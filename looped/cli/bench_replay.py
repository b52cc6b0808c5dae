"""`looped bench replay`: the same arrivals to a server of each policy."""

import json
from pathlib import Path
from typing import Annotated

import typer

from looped.engine_config import EngineConfig
from looped.errors import UsageError

from .bench import AsJson, require_plots
from .bench_serve import (
    DEFAULT_RATE,
    DatasetFile,
    HasPlots,
    MaxLag,
    MaxPromptTokens,
    MaxTotalTokens,
    MinTokens,
    NumRequests,
    OutputTokens,
    PromptTokens,
    Seed,
    SloItl,
    SloShare,
    SloTtft,
    Timeout,
    check_rates,
    command_line,
    dataset_prompts,
    draw,
    made_up_prompts,
)
from .checkpoints import Dtype
from .interrupts import ended_by_sigterm
from .options import with_config_options


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
    max_lag: MaxLag = 0.1,
    timeout: Timeout = 600.0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a server may take until it is ready.")
    ] = 900.0,
    seed: Seed = 0,
    has_plots: HasPlots = True,
    as_json: AsJson = False,
    engine_config: EngineConfig,
) -> None:
    """Play one list of arrivals to `looped serve` under atomic, separate and mixed, side by side.

    A server of each policy is started, loaded and stopped in turn. If a rule of validity is broken,
    the command says which and exits with 1.
    """
    from looped.bench.arrivals import poisson_arrivals
    from looped.bench.load_summary import Judgement
    from looped.bench.machine import describe_host
    from looped.bench.replay import Replay, judge_arms, play_arms
    from looped.bench.replay_report import replay_page
    from looped.bench.serve_benchmark import SCHEMA_VERSION, check_valid, make_folder, write_results
    from looped.bench.served_request import Objective
    from looped.config import ModelConfig

    judgement = Judgement(objective=Objective(slo_ttft, slo_itl), share=slo_share, max_lag=max_lag)
    check_rates([rate])
    if out.exists():
        raise UsageError(f"{out} exists; choose another name for the results")
    if has_plots:
        require_plots()
    config = ModelConfig.from_file(model / "config.json")
    if dataset is None:
        sample = made_up_prompts(
            config.vocab_size,
            num_requests=num_requests,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            seed=seed,
        )("replay")
    else:
        longest = engine_config.max_model_len or config.max_position_embeddings
        sample = dataset_prompts(
            dataset,
            model,
            num_requests=num_requests,
            min_tokens=min_tokens,
            max_prompt_tokens=max_prompt_tokens,
            max_total_tokens=min(max_total_tokens, longest),
            seed=seed,
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
    description = describe_host() | {
        "command": command_line(),
        "model": str(model),
        "dataset": None if dataset is None else str(dataset),
        "dropped": {"replay": sample.dropped} if sample.dropped else None,
    }
    make_folder(out)
    with ended_by_sigterm():
        played = play_arms(plan, out)
    result = judge_arms(played, judgement)
    values = {"schema": SCHEMA_VERSION, **description, **result.to_json()}
    table = "\n".join(replay_page(description, result, judgement)) + "\n"
    write_results(out, values, table)
    if has_plots:
        draw(out, result.arms, "arm")
    print(json.dumps(values) if as_json else table, end="\n" if as_json else "")
    check_valid([str(violation) for violation in result.violations])
