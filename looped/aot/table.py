"""Step reports as a table that a terminal and a Markdown page both show."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from .absent_engine import AbsentEngine
from .report import StepReport
from .targets import Target

MIB = 2**20
GIB = 2**30

COLUMNS = (
    "backend",
    "layers",
    "bucket",
    "compile s",
    "aliased GiB",
    "temp MiB",
    "launches per layer",
    "MB outside attention",
    "over floor",
    "MB attention",
    "floor us",
    "registers",
    "spill B",
    "shared KiB",
    "verdict",
)


def title_of(engine: AbsentEngine, target: Target, context: int) -> str:
    """What the numbers of one target's table are of."""
    config, shape = engine.shape.config, engine.shape
    return (
        f"{target.device.device_kind}: {config.num_layers} layers, width {config.hidden_size}, "
        f"{config.num_heads}/{config.num_kv_heads} heads x {config.head_dim}, "
        f"{config.num_loops} loops, {engine.dtype}, {shape.num_blocks} blocks of "
        f"{shape.block_size}, {context} keys per sequence"
    )


def table_of(reports: Sequence[StepReport]) -> Table:
    """One row per step. Launches: of a layer, those in attention in parentheses."""
    table = Table(*COLUMNS, box=box.MARKDOWN)
    for name in COLUMNS[3:-1]:
        table.columns[COLUMNS.index(name)].justify = "right"
    for report in reports:
        table.add_row(*_cells(report))
    return table


def remarks_of(reports: Sequence[StepReport]) -> list[str]:
    """A line for each failure and each missed aim, with the step's name."""
    return [
        f"{word}: {report.target} {report.name}: {text}"
        for report in reports
        for word, texts in (("FAIL", report.failures), ("aim", report.missed_aims))
        for text in texts
    ]


def _cells(report: StepReport) -> list[str]:
    verdict = "FAIL" if report.failures else "aim missed" if report.missed_aims else "ok"
    has_layers = report.kind.runs_layers
    names = [report.backend, report.layers] if has_layers else ["-", "-"]
    names.append(report.rung_name)
    floor = report.floor
    if floor is None:
        return [*names, *["-"] * (len(COLUMNS) - len(names) - 1), verdict]
    launches = f"{report.launches_per_layer} ({report.launches_in_attention})"
    return [
        *names,
        f"{report.compile_seconds:.1f}",
        f"{report.aliased_bytes / GIB:.2f}",
        f"{report.temporary_bytes / MIB:.1f}",
        launches if has_layers else "-",
        f"{report.num_bytes / 1e6:,.0f}",
        f"{report.bytes_over_floor:.2f}",
        f"{floor.attention_bytes / 1e6:,.0f}" if has_layers else "-",
        f"{report.floor_seconds * 1e6:,.0f}",
        *_largest(report),
        verdict,
    ]


def _largest(report: StepReport) -> list[str]:
    """Most registers, spilled bytes and shared memory of any kernel."""
    if report.kernels is None:
        return ["?", "?", "?"]
    columns = zip(*(kernel.resources for kernel in report.kernels), strict=True)
    registers, spills, shared = (max(column) for column in columns)
    return [str(registers), str(spills), f"{shared / 1024:.0f}"]
