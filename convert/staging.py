"""Write beside and rename: a folder either exists complete or does not exist."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from looped.errors import LoopedError


@contextmanager
def staged_folder(destination: Path, *, source: Path | None, overwrite: bool) -> Iterator[Path]:
    """A new folder beside `destination` that takes its place when the block ends without error.

    On an error the new folder is removed and `destination` is as it was. A process that is killed
    leaves a hidden `.NAME.partial-*` folder, which nothing mistakes for a finished one.

    Args:
        destination: the folder to make; its parents are made too.
        source: the folder that is read; neither folder may be or contain the other. None: nothing
            is read.
        overwrite: replace an existing destination, if it is a model folder.

    Raises:
        LoopedError: when the destination exists and may not be replaced.
    """
    check_destination(destination, source=source, overwrite=overwrite)
    destination = destination.absolute()  # "." has no name and no parent
    destination.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{destination.name}.partial-", dir=destination.parent))
    staged.chmod(0o755)
    try:
        yield staged
        # Somebody may have made it in the meantime.
        check_destination(destination, source=source, overwrite=overwrite)
        _replace(destination, staged)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def check_destination(destination: Path, *, source: Path | None, overwrite: bool) -> None:
    """Raises LoopedError unless `staged_folder` may make this destination."""
    if source is not None and destination.resolve().is_relative_to(source.resolve()):
        raise LoopedError(f"{destination} lies in the source {source}; choose another destination")
    if source is not None and source.resolve().is_relative_to(destination.resolve()):
        raise LoopedError(
            f"{destination} contains the source {source}, which replacing it would delete; "
            "choose another destination"
        )
    if not destination.exists() and not destination.is_symlink():
        return
    if not destination.is_dir():
        raise LoopedError(f"{destination} exists and is not a folder; choose another name")
    if not overwrite:
        raise LoopedError(f"{destination} exists; choose another name or pass --overwrite")
    if any(destination.iterdir()) and not (destination / "config.json").exists():
        raise LoopedError(
            f"{destination} is not a model folder (no config.json in it), so --overwrite does not "
            "replace it; remove it yourself or choose another name"
        )


def _replace(destination: Path, staged: Path) -> None:
    if not destination.exists():
        staged.rename(destination)
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{destination.name}.old-", dir=destination.parent))
    destination.rename(retired / destination.name)
    try:
        staged.rename(destination)
    except BaseException:
        (retired / destination.name).rename(destination)
        retired.rmdir()
        raise
    shutil.rmtree(retired)
