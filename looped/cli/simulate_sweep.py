"""`looped simulate sweep`: a grid of policies, loads and sizes, and capacities."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from looped.errors import UsageError
from looped.simulation.options import SimulationOptions, WorkloadOptions

from .options import with_config_options
from .results import AsJson, HasPlots, command_line, print_result, require_plots
from .simulate import POLICY_FORM, CostTable, Deterministic, Processes, Seeds, TableFormat

if TYPE_CHECKING:
    from looped.simulation.sweeps.sweep import RateSearch


@with_config_options(requests_of=WorkloadOptions, scheduler=SimulationOptions)
def sweep(
    requests_of: WorkloadOptions,
    scheduler: SimulationOptions,
    costs: CostTable,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make, for the results.")],
    policy: Annotated[list[str], typer.Option(help=f"{POLICY_FORM}; repeat to sweep.")],
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Requests per second; repeat to sweep. Recorded arrivals are stretched to it, or "
            "left as they were."
        ),
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Requests under way; repeat to sweep.")
    ] = None,
    prefill_chunk_size: Annotated[
        list[int] | None, typer.Option(min=1, help="Most prompt tokens in an item; repeat.")
    ] = None,
    max_num_seqs: Annotated[
        list[int] | None, typer.Option(min=1, help="Requests active at once; repeat.  [16]")
    ] = None,
    max_num_batched_tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="The budget of rows; repeat.  [256, or above 128 max_num_seqs the next power of "
            "two from max_num_seqs + 128 on]",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER=SECONDS",
            help="Search the largest rate that keeps a time, such as itl_p99=0.05; repeat for "
            "several to keep together.",
        ),
    ] = None,
    start_rate: Annotated[
        float | None, typer.Option(help="First rate of such a search.  [1]")
    ] = None,
    precision: Annotated[
        float | None,
        typer.Option(help="Ratio of rates, above 1, at which a search ends.  [1.05]"),
    ] = None,
    table_format: TableFormat = "csv",
    deterministic: Deterministic = False,
    seeds: Seeds = 3,
    processes: Processes = 1,
    has_plots: HasPlots = True,
    as_json: AsJson = False,
) -> None:
    """Simulate every combination of policies, loads and sizes, on the same seeds.

    DIR gets result.json, result.md, a table of all runs and one of the means, and a picture of what
    prompts gain against what decoding pays (prompt token-loops per second, p99 of the gaps).
    """
    from looped.measure.machine import describe_code
    from looped.measure.results_folder import check_folders
    from looped.simulation.runs import cost_table
    from looped.simulation.sweeps.keeper import run_into_folder
    from looped.simulation.sweeps.sweep import Sweep, SweptOptions
    from looped.simulation.table_files import check_format

    check_folders(out)
    check_format(table_format)
    if has_plots:
        require_plots()
    search = _search_of(slo, {"start": start_rate, "precision": precision})
    swept = SweptOptions(
        policy=policy,
        rate=rate or (),
        concurrency=concurrency or (),
        prefill_chunk_size=prefill_chunk_size or (),
        max_num_seqs=max_num_seqs or (),
        max_num_batched_tokens=max_num_batched_tokens or (),
    )
    table = cost_table(costs)
    planned = Sweep(
        requests_of,
        scheduler,
        table,
        swept,
        search=search,
        num_seeds=seeds,
        is_deterministic=deterministic,
    )
    description = {"command": command_line(), **describe_code(), **planned.facts}
    run_into_folder(planned, out, description, table_format=table_format, num_processes=processes)
    if has_plots and planned.points:
        from looped.plots.pareto import draw_sweep

        draw_sweep(out / "pareto.png", planned.tables["points"], is_estimate=table.is_estimate)
    values = planned.to_json(description, is_complete=True)
    print_result(values, planned.page(description), as_json=as_json)


def _search_of(
    slo: list[str] | None, searched_with: dict[str, float | None]
) -> "RateSearch | None":
    """The search that an --slo asks for; UsageError for its options without one."""
    from looped.simulation.sweeps.capacity import Objective
    from looped.simulation.sweeps.sweep import RateSearch

    given = {name: value for name, value in searched_with.items() if value is not None}
    if slo:
        return RateSearch(objective=Objective.parse(slo), **given)
    if given:
        flag = {"start": "--start-rate", "precision": "--precision"}[next(iter(given))]
        raise UsageError(f"{flag} is about the search of an --slo; add one, or leave it out")
    return None
