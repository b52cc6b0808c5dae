"""`looped simulate …`: scheduling without a model, on the same scheduler that serves."""

from pathlib import Path
from typing import Annotated

import typer

from looped.errors import UsageError
from looped.simulation.options import SimulationOptions, WorkloadOptions

from .options import LaunchLogWaits, with_config_options
from .results import AsJson, command_line, print_result, require_plots

simulate = typer.Typer(
    help="Simulate scheduling on a cost table, and fit one from a launch log.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CostTable = Annotated[
    str,
    typer.Option(
        "--costs", help="Cost table: a shipped one by name, or a .json file that `fit` made."
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="Launches of an engine with --deterministic: one row bucket a kind, several passes as "
        "calls of a single one. Fit the costs to a log of such an engine.",
    ),
]
TableFormat = Annotated[
    str, typer.Option("--format", help="Of the tables: csv, or parquet (needs pyarrow).")
]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds, from 0; every point runs on each.")]
Processes = Annotated[int, typer.Option(min=1, help="Processes that simulate at once.")]
POLICY_FORM = "NAME, or NAME:KEY=VALUE,KEY=VALUE for one that takes options"


@simulate.command()
@with_config_options(requests_of=WorkloadOptions, scheduler=SimulationOptions)
def run(
    requests_of: WorkloadOptions,
    scheduler: SimulationOptions,
    costs: CostTable,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", help=f"Who runs next: {POLICY_FORM}; one.  [mixed]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths, arrivals and depths.")] = 0,
    deterministic: Deterministic = False,
    launch_log: Annotated[
        Path | None, typer.Option(help="Write the launches, as an engine's log has them.")
    ] = None,
    launch_log_waits: LaunchLogWaits = False,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw slots, rows and latencies, as `looped plot` does."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one workload under one policy, and say how long it took.

    The answer has time to first token, gaps between tokens, rates and launches by kind.
    """
    from looped.measure.machine import describe_code
    from looped.record.launch_log import check_launch_log_file
    from looped.simulation.configs import config_json
    from looped.simulation.coverage import UNNAMED, unnamed_share
    from looped.simulation.inputs import plan_of, warn_of_chunks, warn_of_log
    from looped.simulation.options import one_policy, parse_policy
    from looped.simulation.report import costs_json, run_page
    from looped.simulation.runs import cost_table, scheduler_config, simulate_logged
    from looped.simulation.summary import Summary

    if launch_log_waits and launch_log is None and plots is None:
        raise UsageError(
            "--launch-log-waits is about a launch log or its pictures; add --launch-log FILE or "
            "--plots DIR"
        )
    policy = one_policy(policies or ["mixed"], "`looped simulate compare` takes several")
    table = cost_table(costs)
    plan = plan_of(requests_of, table.num_planes)
    workload = plan.workload(seed)
    config = scheduler_config(workload, scheduler.values() | parse_policy(policy))
    warn_of_log(plan, scheduler, [config], is_deterministic=deterministic)
    warn_of_chunks([config])
    check_launch_log_file(launch_log)  # a folder of pictures is made below
    if plots is not None:
        from looped.plots.draw import log_pictures

        require_plots()
        taken = [path for path in log_pictures(plots, "simulation") if path.exists()]
        if taken:
            raise UsageError(f"{taken[0]} exists; choose another place")
        plots.mkdir(parents=True, exist_ok=True)
    timeline = simulate_logged(
        workload,
        config,
        table,
        launch_log,
        is_deterministic=deterministic,
        waits_for_device=launch_log_waits,
    )
    if plots is not None:
        from looped.plots import draw_log

        draw_log(plots, "simulation", timeline)
    share = unnamed_share(timeline, table)
    numbers = {**Summary.of(timeline).numbers, UNNAMED: share}
    description = {
        "command": command_line(),
        **describe_code(),
        "policy": policy,
        "seed": seed,
        "costs": table.name,
        "deterministic": deterministic,
        **plan.to_json(),
    }
    values = description | {
        "costs": costs_json(table),
        "scheduler": config_json(config),
        "numbers": dict(numbers),
    }
    print_result(values, run_page(description, table, {policy: numbers}), as_json=as_json)
