"""`looped simulate compare`: several policies on the same requests."""

from pathlib import Path
from typing import Annotated

import typer

from looped.errors import UsageError
from looped.simulation.options import SimulationOptions, WorkloadOptions

from .options import with_config_options
from .results import AsJson, command_line, print_result
from .simulate import POLICY_FORM, CostTable, Deterministic, Processes, Seeds, TableFormat


@with_config_options(requests_of=WorkloadOptions, scheduler=SimulationOptions)
def compare(
    requests_of: WorkloadOptions,
    scheduler: SimulationOptions,
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
    from looped.measure.results_folder import check_folders
    from looped.simulation.runs import cost_table
    from looped.simulation.sweeps.comparison import Comparison
    from looped.simulation.sweeps.keeper import run_into_folder
    from looped.simulation.table_files import check_format

    check_folders(out)
    check_format(table_format)
    if out is None and table_format != "csv":
        raise UsageError("--format is about the table in a folder of results; add --out DIR")
    comparison = Comparison(
        requests_of,
        scheduler,
        cost_table(costs),
        policy,
        num_seeds=seeds,
        is_deterministic=deterministic,
    )
    description = {"command": command_line(), **describe_code(), **comparison.facts}
    if out is None:
        comparison.run(num_processes=processes)
    else:
        run_into_folder(
            comparison, out, description, table_format=table_format, num_processes=processes
        )
    values = comparison.to_json(description, is_complete=True)
    print_result(values, comparison.page(description), as_json=as_json)
