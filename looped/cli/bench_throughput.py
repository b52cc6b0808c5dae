"""`looped bench throughput`: offline, closed loop, with and without early exit."""

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from looped.engine.options import EngineConfig, read_policy_options

from .engine_choices import (
    AttentionBackend,
    BlockSize,
    CacheDtype,
    LayerForm,
    PromptSeed,
    RunAhead,
    RunDtype,
)
from .interrupts import ended_by_sigterm
from .options import BenchProfileFolder
from .results import AsJson, command_line, print_result


def throughput(
    model: Annotated[Path, typer.Option(help="Model folder, converted or Hugging Face.")],
    prompt_tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Length of a prompt; repeat to sweep.  [256]"),
    ] = None,
    output_tokens: Annotated[
        int,
        typer.Option(min=1, help="Tokens that every request emits; an end of sequence is ignored."),
    ] = 64,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests under way at any time; repeat to sweep.  [8]"),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Exit threshold, decided live; repeat for more. Threshold 1 is always measured.",
        ),
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests in a run.  [4 times the concurrency]")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="mixed, separate, atomic, or any other; a wrong name lists them.")
    ] = "mixed",
    policy_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Option of a policy that takes some; repeatable."),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="max_num_batched_tokens.  [256, or, with a concurrency above 128, the next power "
            "of two at or above concurrency + 128]",
        ),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="prefill_chunk_size.  [min(128, budget - concurrency + 1)]"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Every threshold once a round; at least 5.")] = 6,
    dtype: RunDtype = None,
    kv_cache_dtype: CacheDtype = None,
    attention_backend: AttentionBackend = EngineConfig.attention_backend,
    layers: LayerForm = None,
    block_size: BlockSize = EngineConfig.block_size,
    run_ahead: RunAhead = EngineConfig.run_ahead,
    seed: PromptSeed = 0,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to make, for logs, result.json and result.md."),
    ] = None,
    profile: BenchProfileFolder = None,
    as_json: AsJson = False,
) -> None:
    """Measure offline throughput in a closed loop, and what early exit adds to it.

    A run that breaks a rule of validity is left out, and the command exits with 1.
    """
    from looped.bench.throughput.benchmark import HEAD, ThroughputBenchmark
    from looped.bench.throughput.point import ThroughputPoint
    from looped.bench.throughput.report import to_markdown
    from looped.measure.machine import describe_machine
    from looped.measure.results_folder import check_folders, make_folder, write_results
    from looped.measure.violation import check_valid
    from looped.models import read_config
    from looped.process.compilation_cache import use_compilation_cache
    from looped.record.profiling import check_profile_folder

    check_folders(out, profile)
    check_profile_folder(profile)
    config = read_config(model / "config.json")
    points = [
        ThroughputPoint.derive(
            model=str(model.resolve()),
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            attention_backend=attention_backend,
            layers=layers and layers.value,
            num_planes=config.num_loops,
            policy=policy,
            policy_options=read_policy_options(policy_option or ()),
            thresholds=threshold or (),
            concurrency=num_at_once,
            num_requests=num_requests,
            budget=budget,
            chunk_size=chunk,
            block_size=block_size,
            run_ahead=run_ahead,
            loop={
                "prompt_tokens": length,
                "output_tokens": output_tokens,
                "vocab_size": config.vocab_size,
                "seed": seed,
            },
        )
        for length, num_at_once in product(prompt_tokens or [256], concurrency or [8])
    ]
    benchmark = ThroughputBenchmark(points, rounds, folder=out)
    use_compilation_cache()
    description = {
        **HEAD,
        **describe_machine(),
        "command": command_line(),
        "num_rounds": rounds,
    }
    if out is not None:
        make_folder(out, description)
    with ended_by_sigterm():
        for _ in benchmark.measure():
            if out is not None:
                page = to_markdown(benchmark.results, description)
                write_results(out, benchmark.to_json(description), page)
        print_result(
            benchmark.to_json(description),
            to_markdown(benchmark.results, description),
            as_json=as_json,
        )
        if profile is not None:
            benchmark.profile(profile)
    check_valid([violation for result in benchmark.results for violation in result.violations])
