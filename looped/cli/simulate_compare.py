"""`looped simulate compare`: several policies on the same requests."""

from pathlib import Path
from typing import Annotated

import typer

from looped.errors import UsageError
from looped.simulation.options import SchedulerOptions, WorkloadOptions

from .options import with_config_options
from .results import AsJson, command_line, print_result
from .simulate import POLICY_FORM, CostTable, Processes, Seeds


@with_config_options(requests_of=WorkloadOptions, scheduler=SchedulerOptions)
def compare(
    requests_of: WorkloadOptions,
    scheduler: SchedulerOptions,
    costs: CostTable,
    policy: Annotated[
        list[str],
        typer.Option(help=f"{POLICY_FORM}; repeat, the first is what the others are held against."),
    ],
    seeds: Seeds = 5,
    processes: Processes = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to make, for the results.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate policies on the same seeds, and tell their differences seed by seed.

    Every seed gives all of them the same requests, arrivals and depths, so that what chance does to
    one it does to the others.
    """
    from looped.bench.results_folder import check_folders, make_folder, write_results
    from looped.simulation.grid import Grid, Point, mean_numbers, run_grid
    from looped.simulation.paired import paired_numbers
    from looped.simulation.plans import plan_of
    from looped.simulation.report import comparison_page, costs_json
    from looped.simulation.runs import cost_table
    from looped.simulation.tables import write_table

    check_folders(out)
    if len(set(policy)) < len(policy):
        raise UsageError(f"expected policies that differ, got {', '.join(policy)}")
    table = cost_table(costs)
    plan = plan_of(requests_of, table.num_planes)
    grid = Grid(plan, table, range(seeds))
    points = [Point(name, scheduler.values()) for name in policy]
    runs = dict(zip(policy, run_grid(grid, points, num_processes=processes), strict=True))
    baseline, *others = policy
    means = {name: mean_numbers(numbers) for name, numbers in runs.items()}
    paired = {name: paired_numbers(runs[name], runs[baseline]) for name in others}
    description = {
        "command": command_line(),
        "seeds": seeds,
        "costs": table.name,
        **plan.to_json(),
    }
    page = comparison_page(description, table, means, paired, baseline)
    values = description | {
        "costs": costs_json(table),
        "means": means,
        "baseline": baseline,
        "paired": {
            name: {number: one.to_json() for number, one in numbers.items()}
            for name, numbers in paired.items()
        },
        "is_complete": True,
    }
    if out is not None:
        make_folder(out, {"benchmark": "simulated comparison", "schema": 1, **description})
        rows = [
            {"policy": name, "seed": seed, **numbers}
            for name, own in runs.items()
            for seed, numbers in enumerate(own)
        ]
        write_table(out / "runs.csv", rows)
        write_results(out, values, page)
    print_result(values, page, as_json=as_json)
