"""Results as rows: CSV, or Parquet where pyarrow is installed."""

import csv
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from looped.errors import UsageError

Rows = Sequence[Mapping[str, Any]]
FORMATS = ("csv", "parquet")


def check_format(name: str) -> None:
    """UsageError for a form that there is not, or that something is missing for."""
    if name not in FORMATS:
        raise UsageError(f"the form of a table must be one of {', '.join(FORMATS)}; got {name!r}")
    if name == "parquet" and find_spec("pyarrow") is None:
        raise UsageError("tables as Parquet need pyarrow: pip install pyarrow; or take csv")


def write_table(path: Path, rows: Rows) -> None:
    """Writes rows that have the same keys, beside the name, and renames; by the name's ending."""
    staged = path.with_name(f".{path.name}.partial")
    if path.suffix == ".parquet":
        _write_parquet(staged, rows)
    else:
        with staged.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    staged.replace(path)


def _write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([dict(row) for row in rows])
    # A column without a value is one of numbers, as it is in other tables of its kind.
    columns = [
        field.with_type(pyarrow.float64()) if pyarrow.types.is_null(field.type) else field
        for field in table.schema
    ]
    pyarrow.parquet.write_table(table.cast(pyarrow.schema(columns)), path)
