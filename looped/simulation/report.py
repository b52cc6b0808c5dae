"""Summaries as pages: what was simulated, on which costs, and with what result."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from looped.measure.cells import NOTHING, SCALES, number_cell, shown_unit
from looped.measure.page import description_lines, table_head, table_row
from looped.measure.statistics import Numbers
from looped.sched import CostModel, rung_order

from .coverage import MOST_UNNAMED, UNNAMED
from .fitting.fit import Fit
from .runs import ESTIMATE
from .summary import UNITS
from .sweeps.paired import PairedNumber


def costs_json(costs: CostModel) -> dict[str, Any]:
    """What a result says of its cost table."""
    return {"name": costs.name, "is_estimate": costs.is_estimate, "source": costs.source}


def caution(costs: CostModel, runs: Iterable[Mapping[str, Any]] = ()) -> Iterator[str]:
    """A line over results that rest on numbers nobody measured; none otherwise.

    Args:
        costs: that they rest on.
        runs: numbers that may have a share of launches that the costs do not name.
    """
    if costs.is_estimate:
        yield f"**{ESTIMATE.upper()}**: cost table {costs.name} was computed, not measured."
        yield ""
    shares = [share for one in runs if (share := one.get(UNNAMED)) is not None]
    if shares and max(shares) > MOST_UNNAMED:
        yield (
            f"**CAUTION**: {'up to ' if len(shares) > 1 else ''}{max(shares):.0f} % of the "
            f"launches of a run are of sizes that cost table {costs.name} does not name, so their "
            "costs are carried over from others; fit it to a log that has them."
        )
        yield ""


def numbers_table(columns: Mapping[str, Numbers]) -> Iterator[str]:
    """A row for every number of a summary, a column for every run; times in milliseconds."""
    yield from table_head("", list(columns))
    for name, unit in UNITS.items():
        factor, _ = SCALES.get(unit, (1.0, unit))
        values = [numbers[name] for numbers in columns.values()]
        cells = [number_cell(None if value is None else factor * value) for value in values]
        yield table_row(", ".join(filter(None, (name.replace("_", " "), shown_unit(unit)))), cells)


def run_page(
    description: Mapping[str, Any], costs: CostModel, columns: Mapping[str, Numbers]
) -> str:
    """A page of one or several runs."""
    lines: Sequence[str] = [
        *caution(costs, columns.values()),
        *description_lines(description),
        "",
        *numbers_table(columns),
    ]
    return "\n".join(lines) + "\n"


def interval_cell(paired: PairedNumber | None) -> str:
    """A ratio and its interval, in percent of change."""
    if paired is None or paired.ratio is None:
        return NOTHING
    mean, low, high = (
        100 * (value - 1) for value in (paired.ratio.mean, paired.ratio.low, paired.ratio.high)
    )
    if paired.num_pairs < 2:
        return f"{mean:+.1f}"
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def comparison_page(
    description: Mapping[str, Any],
    costs: CostModel,
    means: Mapping[str, Numbers],
    paired: Mapping[str, Mapping[str, PairedNumber]],
    baseline: str,
) -> str:
    """Means of every policy, and its change against the baseline, seed by seed."""
    lines = [run_page(description, costs, means), *means_note(description)]
    if paired:
        lines.append(
            f"Change against {baseline} on the same seeds, in percent: geometric mean [95 % "
            "confidence interval].\n"
        )
        lines += table_head("", list(paired))
        for name in UNITS:
            cells = [interval_cell(numbers.get(name)) for numbers in paired.values()]
            lines.append(table_row(name.replace("_", " "), cells))
    return "\n".join(lines) + "\n"


SHOWN = (
    "ttft_p50",
    "itl_p50",
    "itl_p99",
    "prompt_token_loops_per_second",
    "output_tokens_per_second",
    "rows_per_pass",
)
"""Numbers of a sweep's page; the files have all."""
RATES = ("capacity", "failed_rate", "full_house_rate")
"""What a search of a capacity finds: the largest rate that does, and one that does not; and what
the scheduler can do at all."""
FAILED_BY, IS_ABOVE = "failed_by", "is_above_full_house"


def means_note(description: Mapping[str, Any]) -> Iterator[str]:
    """A line that says what a number is where there were several seeds."""
    if description.get("seeds", 1) > 1:
        yield (
            "Numbers are means over the seeds of each run's own; a percentile is one run's, and "
            "its mean is not that of all values together.\n"
        )


def sweep_page(
    description: Mapping[str, Any], costs: CostModel, rows: Sequence[Mapping[str, Any]]
) -> str:
    """A line for every point, with what tells it apart and the means of some numbers."""
    lines = [*caution(costs, rows), *description_lines(description), ""]
    lines += means_note(description)
    if rows:
        hidden = {*UNITS, *RATES, FAILED_BY, IS_ABOVE, UNNAMED}
        names = [name for name in rows[0] if name not in hidden]
        varied = [name for name in names if len({str(row[name]) for row in rows}) > 1]
        shown = [name for name in (*SHOWN, *RATES, FAILED_BY) if name in rows[0]]
        heads = [name.replace("_", " ") for name in (*varied, *shown)]
        lines += table_head("policy", [_with_unit(head) for head in heads if head != "policy"])
        for row in rows:
            cells = [_shown(name, row) for name in (*varied, *shown) if name != "policy"]
            lines.append(table_row(str(row["policy"]), cells))
        lines += _above_full_house(rows)
    return "\n".join(lines) + "\n"


def _above_full_house(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    above = [row for row in rows if row.get(IS_ABOVE)]
    if above:
        yield ""
    for row in above:
        yield (
            f"**CAUTION**: {row['policy']}'s capacity of {row['capacity']:.1f}/s is above a full "
            f"house's {row['full_house_rate']:.1f}/s: the run is too short to see the queue grow; "
            "more --requests."
        )


def _with_unit(head: str) -> str:
    name = head.replace(" ", "_")
    unit = "requests/s" if name in RATES else UNITS.get(name, "")
    return ", ".join(filter(None, (head, shown_unit(unit))))


def _shown(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if name == "failed_rate" and value is None and row["capacity"] is not None:
        return "not bounded"
    if name in UNITS or name in RATES:
        factor, _ = SCALES.get(UNITS.get(name, ""), (1.0, ""))
        return number_cell(None if value is None else factor * value)
    return NOTHING if value is None else str(value)


def _buckets(fitted: Fit) -> Iterator[str]:
    kinds: dict[str, list[str]] = {}
    for rung in sorted(fitted.num_launches, key=rung_order):
        kind, rows = rung
        told = f"{rows} ({fitted.num_launches[rung]})"
        kinds.setdefault(kind.name.lower(), []).append(told)
    for name, buckets in kinds.items():
        yield f"{name} {', '.join(buckets)}"


def fit_page(fitted: Fit, out: Path) -> str:
    """How good a fit is, and the table that it gave."""
    costs = fitted.costs
    lines = [
        f"{out}: fitted to {fitted.num_fitted} samples; {fitted.num_held_out} held out, "
        f"{fitted.num_outliers} far out and {fitted.num_compiling} compiling left out",
        f"held out: R2 {fitted.r_squared:.4f}, mean error {100 * fitted.mape:.1f} %, "
        f"total {100 * (fitted.bias - 1):+.1f} %",
        f"a pass: {1e3 * costs.weight_floor:.3f} ms at least, "
        f"{1e6 * costs.row_seconds:.2f} us a row; an LM head: "
        f"{1e3 * costs.head_floor:.3f} ms at least",
        f"a key: {1e9 * costs.decode_key_seconds:.1f} ns (decode), "
        f"{1e9 * costs.prompt_key_seconds:.1f} ns (prompt)",
        f"host: {1e6 * costs.host_launch_seconds:.0f} us a launch, "
        f"{1e6 * costs.host_item_seconds:.1f} us an item, "
        f"{1e6 * costs.host_row_seconds:.2f} us a row; in a call: "
        f"{1e6 * costs.host_call_seconds:.0f} us, "
        f"{1e6 * costs.host_call_row_seconds:.2f} us a row",
        "rows of the buckets in the log (launches): " + "; ".join(_buckets(fitted)),
    ]
    return "\n".join(lines) + "\n"
