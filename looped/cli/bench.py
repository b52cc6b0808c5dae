"""`looped bench …`: measurements, and the models that they are made with."""

from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.engine.options import EngineConfig
from looped.errors import UsageError

from .checkpoints import Dtype
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
from .results import AsJson, HasPlots, command_line, print_result, require_plots

if TYPE_CHECKING:
    from looped.bench.interference.benchmark import Benchmark


bench = typer.Typer(
    help="Measure engines (interference, throughput) and servers (serve, replay), on any model.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Shape(StrEnum):
    """Shapes that are measured."""

    small = "small"
    large = "1.4b"


class Exits(StrEnum):
    """Where the decoders' exits come from."""

    replay = "replay"
    live = "live"


@bench.command("make-model")
def make_model(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")],
    shape: Annotated[
        Shape, typer.Option(help="small (E 512, L 8), or 1.4b, which is Ouro-1.4B's.")
    ] = Shape.small,
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights.")] = Dtype.bfloat16,
    seed: Annotated[int, typer.Option(min=0, help="Of the weights.")] = 0,
) -> None:
    """Make a model with random weights to measure with, as a Hugging Face folder."""
    from looped.bench.model_maker import SHAPES
    from looped.bench.model_maker import make_model as make

    make(folder, SHAPES[shape], dtype=dtype, seed=seed)


@bench.command()
def interference(
    model: Annotated[Path, typer.Option(help="Model folder, converted or Hugging Face.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make, for logs and results.")],
    decoders: Annotated[
        list[int] | None, typer.Option(min=1, help="B, resident decoders; repeat to sweep.  [8]")
    ] = None,
    prompt_tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, help="N, length of an injected prompt; repeat to sweep.  [512]"),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="max_num_batched_tokens; repeat to sweep.  [256, or, with max_num_seqs above 128, "
            "the next power of two at or above max_num_seqs + 128]",
        ),
    ] = None,
    chunk: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="prefill_chunk_size; repeat to sweep.  [min(128, budget - max_num_seqs + 1)]",
        ),
    ] = None,
    threshold: Annotated[
        list[float] | None,
        typer.Option(min=0, max=1, help="Exit threshold of the decoders; repeat to sweep.  [1]"),
    ] = None,
    exits: Annotated[
        Exits,
        typer.Option(
            help="replay: exits at a threshold are recorded once, and replayed in every arm. live: "
            "every arm decides for itself."
        ),
    ] = Exits.replay,
    exit_trace: Annotated[
        Path | None, typer.Option(help="JSON: exit depths to replay, one list per decoder.")
    ] = None,
    num_prompts: Annotated[
        int | None,
        typer.Option(min=1, help="M, prompts in a run.  [enough for the gaps that a p99 needs]"),
    ] = None,
    first_injection: Annotated[
        int | None,
        typer.Option(min=1, help="k, committed decoder tokens at the first prompt.  [8 B]"),
    ] = None,
    injection_interval: Annotated[
        int | None,
        typer.Option(min=1, help="g, committed decoder tokens between prompts.  [(chunks + 5) B]"),
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of a decoder.  [past the last window]")
    ] = None,
    decoder_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of a decoder.  [min(chunk, budget // B)]")
    ] = None,
    prompt_output_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that an injected prompt emits.")
    ] = 1,
    bystander_tokens: Annotated[
        int, typer.Option(min=0, help="Short prompt right behind every injected one; 0: none.")
    ] = 0,
    prompt_slots: Annotated[
        int, typer.Option(min=1, help="Injected prompts that may be under way at once.")
    ] = 2,
    pairs: Annotated[
        int, typer.Option(help="Rounds over all processes; every arm once a round.")
    ] = 6,
    processes: Annotated[int, typer.Option(help="Processes, one after the other.")] = 2,
    dtype: RunDtype = None,
    kv_cache_dtype: CacheDtype = None,
    attention_backend: AttentionBackend = EngineConfig.attention_backend,
    layers: LayerForm = None,
    block_size: BlockSize = EngineConfig.block_size,
    run_ahead: RunAhead = EngineConfig.run_ahead,
    seed: PromptSeed = 0,
    has_plots: HasPlots = True,
    profile: BenchProfileFolder = None,
    as_json: AsJson = False,
) -> None:
    """Measure what arriving prompts do to decoding: atomic, separate and mixed, side by side.

    A run that breaks a rule of validity is left out, and the command exits with 1. Everything is
    worked out from the launch logs in DIR; `looped bench report DIR` does it again.
    """
    from looped.bench.engine_point import Point
    from looped.bench.interference.benchmark import profile_point, rounds_of, run_benchmark
    from looped.measure.machine import describe_machine
    from looped.measure.results_folder import check_folders
    from looped.measure.violation import check_valid
    from looped.models import read_config
    from looped.record.profiling import check_profile_folder
    from looped.text.request_file import read_exit_trace

    rounds = rounds_of(pairs, processes)
    check_folders(out, profile)
    if has_plots:
        require_plots()
    check_profile_folder(profile)
    config = read_config(model / "config.json")
    traces: tuple[tuple[int, ...], ...] = ()
    if exit_trace is not None:
        if not exit_trace.is_file():
            raise UsageError(f"{exit_trace} cannot be read: there is no such file")
        if threshold or len(decoders or [8]) > 1:
            raise UsageError(
                "--exit-trace replays one trace: leave out --threshold and sweeps of B"
            )
        traces = tuple(map(tuple, read_exit_trace(exit_trace, (decoders or [8])[0])))
    chunks: list[int | None] = list(chunk) if chunk else [None]
    budgets: list[int | None] = list(budget) if budget else [None]
    points = [
        Point.derive(
            model=str(model.resolve()),
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            attention_backend=attention_backend,
            layers=layers and layers.value,
            num_planes=config.num_loops,
            num_decoders=num_decoders,
            prompt_tokens=length,
            budget=rows,
            chunk_size=chunk_size,
            block_size=block_size,
            run_ahead=run_ahead,
            exit_threshold=exit_threshold,
            exits=exits.value,
            num_pairs=pairs,
            prompt_slots=prompt_slots,
            num_prompts=num_prompts,
            decoder_prompt_tokens=decoder_prompt_tokens,
            bystander_tokens=bystander_tokens,
            workload={
                "vocab_size": config.vocab_size,
                "first_injection": first_injection,
                "injection_interval": injection_interval,
                "output_tokens": output_tokens,
                "prompt_output_tokens": prompt_output_tokens,
                "seed": seed,
                "traces": traces,
            },
        )
        for num_decoders, length, rows, chunk_size, exit_threshold in product(
            decoders or [8], prompt_tokens or [512], budgets, chunks, threshold or [1.0]
        )
    ]  # fmt: skip
    description = describe_machine() | {"command": command_line()}
    with ended_by_sigterm():
        measured = run_benchmark(out, points, rounds, description)
        benchmark = _report(out, has_plots=has_plots, as_json=as_json)
        if profile is not None:
            for point in measured:
                profile_point(out / point.name, point, profile / point.name)
    check_valid(benchmark.violations)


@bench.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `interference` has made.")],
    has_plots: HasPlots = True,
    as_json: AsJson = False,
) -> None:
    """Judge and measure the launch logs of a benchmark once more."""
    from looped.measure.violation import check_valid

    if has_plots:
        require_plots()
    check_valid(_report(folder, has_plots=has_plots, as_json=as_json).violations)


def _report(folder: Path, *, has_plots: bool, as_json: bool) -> "Benchmark":
    """Result files, pictures and the answer, from the logs; whether it is valid is not judged."""
    from looped.bench.interference.benchmark import read_benchmark
    from looped.bench.interference.report import to_markdown
    from looped.measure.results_folder import write_results

    benchmark = read_benchmark(folder)
    values, page = benchmark.to_json(), to_markdown(benchmark)
    write_results(folder, values, page)
    if has_plots:
        draw_points(folder, benchmark)
    print_result(values, page, as_json=as_json)
    return benchmark


def draw_points(folder: Path, benchmark: "Benchmark") -> None:
    """Pictures of every point, in its folder: all arms' latencies, and one run of each arm."""
    from looped.plots import draw_distributions, draw_log

    for result in benchmark.results:
        place = folder / result.point.name
        latencies: dict[str, list[float]] = {}
        for run in result.runs:
            gaps = run.window_gaps or run.gaps
            latencies.setdefault(run.arm.name, []).extend(gap.seconds for gap in gaps)
        draw_distributions(place / "itl-by-arm.png", latencies)
        for run in result.runs[: len(latencies)]:
            draw_log(place, run.arm.name, run.timeline)
