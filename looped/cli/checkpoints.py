"""`looped convert`, `looped export` and `looped inspect`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """Types that a model can be stored and run in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


Overwrite = Annotated[bool, typer.Option(help="Replace DST if it is a model folder.")]


def convert(
    src: Annotated[str, typer.Argument(help="Hugging Face folder with safetensors, or a hub id.")],
    dst: Annotated[Path, typer.Argument(help="Folder to make.")],
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type of the result; by default the source's.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read DST back and compare every tensor.")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Convert a looped model from Hugging Face's form to Flax parameters."""
    from looped.convert import convert_checkpoint, resolve_model_folder

    convert_checkpoint(
        resolve_model_folder(src),
        dst,
        dtype=dtype,
        verify=verify,
        overwrite=overwrite,
        source_name=src,
    )


def export(
    src: Annotated[Path, typer.Argument(help="Converted folder.")],
    dst: Annotated[Path, typer.Argument(help="Folder to make.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a converted model back as Hugging Face safetensors, bit for bit."""
    from looped.convert import export_checkpoint

    export_checkpoint(src, dst, overwrite=overwrite)


def inspect(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Model folder or hub id.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show a model's configuration, tensors, parameter count and KV bytes per token."""
    from rich.console import Console
    from rich.table import Table

    from looped.convert import inspect_folder, resolve_model_folder

    inspection = inspect_folder(resolve_model_folder(folder))
    if as_json:
        print(json.dumps(inspection.to_json()))
        return
    console = Console()
    values = inspection.to_json()
    summary = Table(title=f"{folder} ({values['form']})", show_header=False)
    for name, value in values["config"].items():
        summary.add_row(name, str(value))
    summary.add_section()
    summary.add_row("tensors", str(values["num_tensors"]))
    summary.add_row("parameters", f"{values['num_parameters']:,}")
    summary.add_row("bytes", f"{values['bytes']:,} ({values['dtype']})")
    for dtype, size in values["kv_bytes_per_token"].items():
        summary.add_row(f"KV bytes per token, {dtype}", f"{size:,}")
    if gate := values["lookahead_gate"]:
        summary.add_row("look-ahead gate", ", ".join(f"{name} {gate[name]}" for name in gate))
    console.print(summary)
    tensors = Table("tensor", "shape")
    for name, shape in values["tensors"].items():
        tensors.add_row(name, str(shape))
    console.print(tensors)
