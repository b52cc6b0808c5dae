"""`looped simulate compare`: several policies on the same requests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from looped.errors import UsageError
from looped.simulation.options import SchedulerOptions, WorkloadOptions

from .options import with_config_options
from .results import AsJson, command_line, print_result
from .simulate import POLICY_FORM, CostTable, Deterministic, Processes, Seeds, TableFormat


@with_config_options(requests_of=WorkloadOptions, scheduler=SchedulerOptions)
def compare(
    requests_of: WorkloadOptions,
    scheduler: SchedulerOptions,
    costs: CostTable,
    policy: Annotated[
        list[str],
        typer.Option(help=f"{POLICY_FORM}; repeat, the first is what the others are held against."),
    ],
    deterministic: Deterministic = False,
    seeds: Seeds = 5,
    processes: Processes = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to make, for the results.")
    ] = None,
    table_format: TableFormat = "csv",
    as_json: AsJson = False,
) -> None:
    """Simulate policies on the same seeds, and tell their differences seed by seed.

    Every seed gives all of them the same requests, arrivals and depths, so that what chance does to
    one it does to the others.
    """
    from looped.measure.machine import describe_code
    from looped.measure.results_folder import check_folders, make_folder, write_results
    from looped.simulation.configs import config_json
    from looped.simulation.grid import Grid, Point, mean_numbers, run_grid
    from looped.simulation.inputs import plan_of, seeds_of, warn_of_chunks, warn_of_log
    from looped.simulation.keeper import Keeper
    from looped.simulation.paired import paired_numbers
    from looped.simulation.report import comparison_page, costs_json
    from looped.simulation.runs import cost_table
    from looped.simulation.summary import UNITS
    from looped.simulation.table_files import check_format, write_table

    check_folders(out)
    check_format(table_format)
    if out is None and table_format != "csv":
        raise UsageError("--format is about the table in a folder of results; add --out DIR")
    check_differ("--policy", policy)
    table = cost_table(costs)
    plan = plan_of(requests_of, table.num_planes)
    grid = Grid(plan, table, seeds_of(plan, seeds), is_deterministic=deterministic)
    points = [Point(name, scheduler.values()) for name in policy]
    configs = [grid.config(point) for point in points]
    chunk_sizes = {name: one.chunk_size for name, one in zip(policy, configs, strict=True)}
    warn_of_log(plan, scheduler, configs, is_deterministic=deterministic)
    warn_of_chunks(configs)
    baseline, *others = policy
    description = {
        "command": command_line(),
        **describe_code(),
        "seeds": len(grid.seeds),
        "costs": table.name,
        "deterministic": deterministic,
        **plan.to_json(),
    }
    rows: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    page = ""

    def add(point: Point, seed: int, numbers: Mapping[str, float | None]) -> None:
        told = {"policy": point.policy, "prefill_chunk_size": chunk_sizes[str(point.policy)]}
        rows.append({**told, "seed": seed, **numbers})
        keeper.grew()

    def write(is_complete: bool) -> None:
        nonlocal page
        runs = {name: [row for row in rows if row["policy"] == name] for name in policy}
        means = {name: mean_numbers(own) for name, own in runs.items() if own}
        paired = {
            name: paired_numbers(own, runs[baseline][: len(own)])
            for name in others
            if (own := [{number: row[number] for number in UNITS} for row in runs[name]])
        }
        page = comparison_page(description, table, means, paired, baseline)
        values.update(
            description,
            costs=costs_json(table),
            schedulers=list(map(config_json, configs)),
            means=means,
            baseline=baseline,
            paired={
                name: {number: one.to_json() for number, one in numbers.items()}
                for name, numbers in paired.items()
            },
            is_complete=is_complete,
        )
        if out is not None:
            if rows:
                write_table(out / f"runs.{table_format}", rows)
            write_results(out, values, page)

    if out is not None:
        make_folder(out, {"benchmark": "simulated comparison", "schema": 1, **description})
    with Keeper(write) as keeper:
        run_grid(grid, points, num_processes=processes, on_run=add)
    print_result(values, page, as_json=as_json)


def check_differ(flag: str, values: Sequence[object]) -> None:
    """UsageError for an option that came twice with one value, which would run everything twice."""
    if len(set(values)) < len(values):
        given = ", ".join(str(value) for value in values)
        raise UsageError(f"expected values of {flag} that differ, got {given}")
