"""`looped simulate sweep`: a grid of policies, loads and sizes, and capacities."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from looped.errors import UsageError
from looped.simulation.options import SchedulerOptions, WorkloadOptions

from .options import with_config_options
from .results import AsJson, HasPlots, command_line, print_result, require_plots
from .simulate import POLICY_FORM, CostTable, Deterministic, Processes, Seeds, TableFormat
from .simulate_compare import check_differ


@with_config_options(requests_of=WorkloadOptions, scheduler=SchedulerOptions)
def sweep(
    requests_of: WorkloadOptions,
    scheduler: SchedulerOptions,
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
            help="The budget of rows; repeat.  [256, or, with max_num_seqs above 128, the next "
            "power of two at or above max_num_seqs + 128]",
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
    from looped.bench.capacity import check_search
    from looped.bench.machine import describe_code
    from looped.bench.results_folder import check_folders, make_folder, write_results
    from looped.simulation.capacity import Objective, PointCapacity, capacities
    from looped.simulation.configs import config_json
    from looped.simulation.grid import Grid, Point, mean_numbers, run_grid
    from looped.simulation.keeper import Keeper
    from looped.simulation.plans import plan_of, seeds_of, warn_of_chunks, warn_of_log
    from looped.simulation.report import costs_json, sweep_page
    from looped.simulation.runs import cost_table
    from looped.simulation.tables import check_format, write_table
    from looped.simulation.workload import check_rate

    check_folders(out)
    check_format(table_format)
    if has_plots:
        require_plots()
    searched_with = {"--start-rate": start_rate, "--precision": precision}
    if given := [name for name, value in searched_with.items() if value is not None and not slo]:
        raise UsageError(f"{given[0]} is about the search of an --slo; add one, or leave it out")
    swept: dict[str, Sequence[object] | None] = {
        "--policy": policy,
        "--rate": rate,
        "--concurrency": concurrency,
        "--prefill-chunk-size": prefill_chunk_size,
        "--max-num-seqs": max_num_seqs,
        "--max-num-batched-tokens": max_num_batched_tokens,
    }
    for name, values_of in swept.items():
        check_differ(name, values_of or ())
    start_rate = 1.0 if start_rate is None else start_rate
    precision = 1.05 if precision is None else precision
    objective = Objective.parse(slo) if slo else None
    if objective is not None:
        check_rate(start_rate)
        check_search(start_rate, start_rate / 1024, precision)
    if rate and concurrency:
        raise UsageError("--rate and --concurrency are two kinds of load; sweep one")
    has_requests = requests_of.workload is not None or requests_of.from_log is not None
    if objective is None and not (rate or concurrency or has_requests):
        raise UsageError("expected loads to sweep (--rate or --concurrency), or an --slo to search")
    if objective is not None and concurrency:
        raise UsageError("--slo searches a rate; leave out --concurrency")
    table = cost_table(costs)
    searched_rate = None if objective is None else start_rate
    load = replace(
        requests_of,
        rate=rate[0] if rate else searched_rate,
        concurrency=concurrency[0] if concurrency else None,
    )
    plan = plan_of(load, table.num_planes)
    grid = Grid(plan, table, seeds_of(plan, seeds), is_deterministic=deterministic)
    if objective is not None:
        for seed in grid.seeds:
            objective.check(plan.workload(seed))
    chunks: list[int | None] = list(prefill_chunk_size) if prefill_chunk_size else [None]
    budgets: list[int | None] = list(max_num_batched_tokens) if max_num_batched_tokens else [None]
    sizes = [
        replace(
            scheduler,
            prefill_chunk_size=chunk,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=budget,
        ).values()
        for chunk, num_seqs, budget in product(chunks, max_num_seqs or [16], budgets)
    ]
    loads: list[dict[str, Any]] = [{"rate": one} for one in rate or []]
    loads += [{"concurrency": one} for one in concurrency or []]
    if not loads and objective is None:
        loads = [{}]  # as the requests came
    points = [Point(name, options, **one) for name, options, one in product(policy, sizes, loads)]
    searched = [Point(name, options) for name, options in product(policy, sizes)]
    configs = [grid.config(point) for point in searched]
    for point in points:
        grid.config(point)
    warn_of_log(plan, scheduler, configs, is_deterministic=deterministic)
    warn_of_chunks(configs)
    description = {
        "command": command_line(),
        **describe_code(),
        "seeds": len(grid.seeds),
        "costs": table.name,
        "deterministic": deterministic,
        **plan.to_json(),
        "rate": None,
        "concurrency": None,
        "objective": None if slo is None else ", ".join(slo),
    }
    columns: list[dict[str, Any]] = [
        {
            **point.columns,
            "max_num_batched_tokens": config.budget,
            "prefill_chunk_size": config.chunk_size,
        }
        for point, config in zip(searched, configs, strict=True)
    ]
    told = [
        columns[index // len(loads)] | {"rate": point.rate, "concurrency": point.concurrency}
        for index, point in enumerate(points)
    ]
    names = list(dict.fromkeys(name for one in columns for name in one))
    runs: list[dict[str, Any]] = []
    found: list[PointCapacity] = []
    rows: list[dict[str, Any]] = []
    values: dict[str, Any] = {}
    page = ""

    def add_run(point: Point, seed: int, numbers: Mapping[str, float | None]) -> None:
        own = {**dict.fromkeys(names), **told[len(rows)]}
        runs.append({**own, "seed": seed, **numbers})
        if len(runs) % len(grid.seeds) == 0:
            rows.append({**own, **mean_numbers(runs[-len(grid.seeds) :])})
        keeper.grew()

    def add_capacity(capacity: PointCapacity) -> None:
        found.append(capacity)
        keeper.grew()

    def write(is_complete: bool) -> None:
        nonlocal page
        limits = [
            {**_without_rate(own), **one.columns} for own, one in zip(columns, found, strict=False)
        ]
        page = sweep_page(description, table, rows)
        if limits:
            page += "\n" + sweep_page({}, table, limits)
        values.update(
            description,
            costs=costs_json(table),
            schedulers=list(map(config_json, configs)),
            points=rows,
            capacities=limits,
            is_complete=is_complete,
        )
        for name, kept in {"runs": runs, "points": rows, "capacities": limits}.items():
            if kept:
                write_table(out / f"{name}.{table_format}", kept)
        write_results(out, values, page)

    make_folder(out, {"benchmark": "simulated sweep", "schema": 1, **description})
    with Keeper(write) as keeper:
        run_grid(grid, points, num_processes=processes, on_run=add_run)
        if objective is not None:
            capacities(
                grid,
                searched,
                objective,
                start=start_rate,
                precision=precision,
                num_processes=processes,
                on_found=add_capacity,
            )
    if has_plots and points:
        _draw(out / "pareto.png", rows, is_estimate=table.is_estimate)
    print_result(values, page, as_json=as_json)


def _without_rate(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name != "rate"}


def _draw(path: Path, rows: list[dict[str, Any]], *, is_estimate: bool) -> None:
    from looped.plots.pareto import draw_pareto

    places: dict[str, list[tuple[float, float]]] = {}
    has_p99 = all(row["itl_p99"] is not None for row in rows)
    latency = "itl_p99" if has_p99 else "itl_p95"
    for row in rows:
        if row[latency] is not None and row["prompt_token_loops_per_second"] is not None:
            place = (row["prompt_token_loops_per_second"], row[latency])
            places.setdefault(row["policy"], []).append(place)
    title = "prompts against decoding, simulated" + (" (estimate)" if is_estimate else "")
    name = f"{latency[-3:]} of the gaps between tokens"
    draw_pareto(path, places, title=title, latency_name=name)
