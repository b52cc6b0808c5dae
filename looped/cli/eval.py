"""`looped eval …`: what a model answers, judged."""

from pathlib import Path
from typing import Annotated, Any

import typer

from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.sched import ExitMode

from .checkpoints import Dtype
from .options import OptionalModel, chosen_model, with_config_options
from .results import AsJson, command_line, print_result, require_plots

evaluation = typer.Typer(
    help="Judge what a model answers: the demo's held-out problems, or GSM8K.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder to make, for the report, JSON and pictures."),
]
Plots = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG files into --out.")]


@evaluation.command()
def demo(
    model: OptionalModel = None,
    n: Annotated[
        int | None, typer.Option("--n", min=1, help="Held-out problems, of 1,000.  [87]")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All 1,000 held-out problems.")] = False,
    threshold: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Threshold of adaptive exits; repeatable. Policies are compared at the first, "
            "too.  [0.98 0.95 0.9]",
        ),
    ] = None,
    exit_mode: Annotated[
        ExitMode | None, typer.Option(help="How a token is found ready to leave; by default ouro.")
    ] = None,
    min_loops: Annotated[int, typer.Option(min=1, help="Fewest loops of a decode token.")] = 1,
    dtype: Annotated[
        Dtype, typer.Option(help="Type to run in; in float32 all policies have to agree.")
    ] = Dtype.float32,
    min_accuracy: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            metavar="PERCENT",
            help="Exit with 1 if fewer are right with every loop.  [no bound]",
        ),
    ] = None,
    out: Out = None,
    has_plots: Plots = True,
    as_json: AsJson = False,
) -> None:
    """Answer held-out demo problems under every policy, at every depth and with adaptive exits.

    Exits with 1 if the answers of mixed, separate and atomic differ in float32, or if fewer are
    right than --min-accuracy.
    """
    from looped.demo.problems import FULL_COUNT, QUICK_COUNT, held_out
    from looped.evaluation.demo import THRESHOLDS, evaluate_demo
    from looped.evaluation.demo_report import demo_page
    from looped.evaluation.result_folder import write_demo

    if full and n is not None:
        raise UsageError("--full is all held-out problems; leave out --n")
    count = FULL_COUNT if full else n or QUICK_COUNT
    if count > FULL_COUNT:
        raise UsageError(f"--n must be at most {FULL_COUNT}, got {count}")
    thresholds = tuple(threshold or THRESHOLDS)
    if len(set(thresholds)) < len(thresholds):
        raise UsageError(f"thresholds must differ, got {', '.join(map(str, thresholds))}")
    _check_out(out, has_plots=has_plots)
    name = chosen_model(model)
    result = evaluate_demo(
        name,
        held_out(count),
        thresholds=thresholds,
        exit_mode=exit_mode,
        min_loops=min_loops,
        dtype=dtype,
        description=_description()
        | {"model": name, "exit_mode": exit_mode and exit_mode.value, "min_loops": min_loops},
    )
    print_result(result.to_json(), demo_page(result), as_json=as_json)
    if out is not None:
        write_demo(out, result, has_plots=has_plots)
    result.check_agreement()
    if min_accuracy is not None:
        result.check_accuracy(min_accuracy)


@evaluation.command()
@with_config_options(engine_config=EngineConfig)
def gsm8k(
    *,
    data: Annotated[
        Path,
        typer.Option(help='GSM8K\'s JSONL: {"question", "answer" ending in "#### N"} a line.'),
    ],
    model: Annotated[str, typer.Option(help="Converted or Hugging Face folder, or a hub id.")],
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many; lines after them are not read."),
    ] = None,
    num_shots: Annotated[
        int, typer.Option(min=0, max=3, help="Worked examples before each question.")
    ] = 3,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 320,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Apply the chat template, which raw completions do without."),
    ] = False,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    num_loops: Annotated[
        int | None, typer.Option(min=1, help="Load the model with this P, prompts included.")
    ] = None,
    out: Out = None,
    has_plots: Plots = True,
    as_json: AsJson = False,
    engine_config: EngineConfig,
) -> None:
    """Answer GSM8K's problems, all of them together, and judge the numbers."""
    from looped.evaluation.gsm8k import evaluate_gsm8k
    from looped.evaluation.gsm8k_problems import read_gsm8k
    from looped.evaluation.gsm8k_report import gsm8k_page
    from looped.evaluation.result_folder import write_gsm8k
    from looped.llm import LLM

    _check_out(out, has_plots=has_plots)
    if engine_config.exit_mode is ExitMode.TRACE:
        raise UsageError("--exit-mode trace replays exits, and there are none here; choose another")
    problems = read_gsm8k(data, limit)
    llm = LLM(model, dtype=dtype, num_loops=num_loops, config=engine_config)
    result = evaluate_gsm8k(
        llm,
        problems,
        num_shots=num_shots,
        max_tokens=max_tokens,
        is_chat=chat,
        description=_description()
        | {
            "model": model,
            "dtype": llm.engine.loaded.dtype,
            "data": str(data),
            "num_shots": num_shots,
            "is_chat": chat,
        },
    )
    print_result(result.to_json(), gsm8k_page(result), as_json=as_json)
    if out is not None:
        write_gsm8k(out, result, has_plots=has_plots)
    result.check_complete()


def _check_out(out: Path | None, *, has_plots: bool) -> None:
    """UsageError before long work for a folder that cannot be made, or pictures that cannot be."""
    from looped.measure.results_folder import check_folders

    check_folders(out)
    if out is not None and has_plots:
        require_plots()


def _description() -> dict[str, Any]:
    """Machine, date, and the command as it was typed."""
    from looped.measure.machine import describe_machine

    return describe_machine() | {"command": command_line()}
