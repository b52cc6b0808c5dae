"""The folder of a benchmark's results, by one policy for all of them.

It must not exist. `benchmark.json` is written first, and says what is measured on what; then every
run's log, when the run is over. `result.json` and `result.md` follow as soon as they can say
something, and are replaced as more is measured; until the last time their `is_complete` is false.
So what was measured is kept however a benchmark ends early, and what is unfinished does not look
finished: there is no `result.json`, or it says so.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from looped.errors import UsageError

BENCHMARK_FILE, RESULT_FILE, TABLE_FILE = "benchmark.json", "result.json", "result.md"
INCOMPLETE = "**INCOMPLETE**: the benchmark is still running, or ended early.\n\n"


def check_folders(out: Path | None, profile: Path | None = None) -> None:
    """Refuses a place for results that is taken or cannot be had, before anything slow is done.

    Raises:
        UsageError: `out` exists or cannot be made, or one of the two folders would lie in the
            other.
    """
    if out is None:
        return
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists; choose another name for the results")
    check_writable(out)
    if profile is None:
        return
    results, traces = out.resolve(), profile.resolve()
    if results.is_relative_to(traces) or traces.is_relative_to(results):
        raise UsageError(
            f"results and profile need folders apart, got --out {out} and --profile {profile}"
        )


def check_writable(out: Path) -> None:
    """Makes a folder in `out`, or where it or its first missing parent would be, and removes it.

    Raises:
        UsageError: nothing can be written there.
    """
    path = out.absolute()
    place = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=place):
            pass
    except OSError as error:
        what = "written to" if place == path else "made"
        raise UsageError(
            f"{out} cannot be {what} ({place}: {error.strerror}); choose another place"
        ) from None


def make_folder(folder: Path, description: dict[str, Any]) -> None:
    """Makes the folder and its `benchmark.json`.

    Args:
        folder: must not exist.
        description: what is measured on what: `benchmark` names its kind, `schema` is the version
            of that kind's files.
    """
    check_folders(folder)
    folder.mkdir(parents=True)
    write_json(folder / BENCHMARK_FILE, description)


def write_results(folder: Path, values: dict[str, Any], page: str) -> None:
    """Puts `result.json` and `result.md` into the folder, in place of earlier ones.

    Args:
        folder: of the benchmark.
        values: all of the result; `is_complete` says whether more is to come.
        page: the same to be read.
    """
    write_json(folder / RESULT_FILE, values)
    _replace(folder / TABLE_FILE, page if values["is_complete"] else INCOMPLETE + page)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """A file of JSON, in place of an earlier one."""
    _replace(path, json.dumps(values, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    """Writes beside and renames."""
    staged = path.with_name(f".{path.name}.partial")
    staged.write_text(text, encoding="utf-8")
    staged.replace(path)
