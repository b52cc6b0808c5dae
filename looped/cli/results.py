"""What all benchmarks' commands share: how they are called for the record, and how they answer."""

import json
import shlex
import sys
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of the table.")]
HasPlots = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG files.")]


def command_line(*, hidden: str | None = None) -> str:
    """This command, for the record; without its secret."""
    arguments = [
        argument.replace(hidden, "***") if hidden else argument for argument in sys.argv[1:]
    ]
    return shlex.join(["looped", *arguments])


def print_result(values: dict[str, Any], page: str, *, as_json: bool) -> None:
    """The answer on standard output, as a page or as one line of JSON."""
    print(json.dumps(values) if as_json else page, end="\n" if as_json else "", flush=True)


def require_plots() -> None:
    """UsageError before long work if the drawing library is not there."""
    from looped.plots import require_matplotlib

    require_matplotlib("--no-plots leaves the pictures out")
