"""`looped bench throughput`: offline, closed loop, with and without early exit."""

import json
import shlex
import sys
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from looped.engine_config import EngineConfig
from looped.errors import LoopedError, UsageError

from .bench import AsJson, Layers
from .checkpoints import Dtype
from .options import BenchProfileFolder


def throughput(
    model: Annotated[Path, typer.Option(help="Model folder, converted or Hugging Face.")],
    prompt_tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Length of a prompt; repeat to sweep.  [256]"),
    ] = None,
    output_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that a request emits, whatever they are.")
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
    policy: Annotated[str, typer.Option(help="mixed, separate or atomic.")] = "mixed",
    budget: Annotated[int, typer.Option(min=1, help="max_num_batched_tokens.")] = 256,
    chunk: Annotated[
        int | None,
        typer.Option(min=1, help="prefill_chunk_size.  [min(128, budget - concurrency + 1)]"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Every threshold once a round; at least 5.")] = 6,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option(help="Type of cached keys and values; by default the engine's.")
    ] = None,
    attention_backend: Annotated[
        str, typer.Option(help="Attention backend.")
    ] = EngineConfig.attention_backend,
    layers: Annotated[
        Layers | None,
        typer.Option(help="Form of the layers in a compiled step; by default the platform's best."),
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Positions in a KV block.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of the prompts.")] = 0,
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
    from looped.bench.machine import describe_machine
    from looped.bench.throughput import check_plan, results_folder, run_throughput, to_json
    from looped.bench.throughput_point import ThroughputPoint
    from looped.bench.throughput_report import to_markdown
    from looped.compilation_cache import use_compilation_cache
    from looped.config import ModelConfig
    from looped.profiling import check_profile_folder

    if out is not None and out.exists():
        raise UsageError(f"{out} exists; choose another name for the results")
    check_profile_folder(profile)
    config = ModelConfig.from_file(model / "config.json")
    points = [
        ThroughputPoint.derive(
            model=str(model.resolve()),
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            attention_backend=attention_backend,
            layers=layers and layers.value,
            num_planes=config.num_loops,
            policy=policy,
            thresholds=threshold or (),
            concurrency=num_at_once,
            num_requests=num_requests,
            budget=budget,
            chunk_size=chunk,
            block_size=block_size,
            loop={
                "prompt_tokens": length,
                "output_tokens": output_tokens,
                "vocab_size": config.vocab_size,
                "seed": seed,
            },
        )
        for length, num_at_once in product(prompt_tokens or [256], concurrency or [8])
    ]
    check_plan(points, rounds)
    use_compilation_cache()
    description = describe_machine() | {
        "command": shlex.join(["looped", *sys.argv[1:]]),
        "num_rounds": rounds,
    }
    with results_folder(out) as folder:
        results = run_throughput(points, rounds, log_folder=folder, profile_folder=profile)
        page = to_markdown(results, description)
        values = json.dumps(to_json(results, description))
        if folder is not None:
            (folder / "result.md").write_text(page, encoding="utf-8")
            (folder / "result.json").write_text(values + "\n", encoding="utf-8")
    print(values if as_json else page, end="\n" if as_json else "")
    broken = [str(violation) for result in results for violation in result.violations]
    if broken:
        raise LoopedError(f"the benchmark is invalid, {len(broken)} broken rules: {broken[0]}")
