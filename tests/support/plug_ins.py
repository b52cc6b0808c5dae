"""Packages that bring policies, made up on disk: a module and its entry points."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from looped.sched.policies import GROUP, registry

InstallPlugIn = Callable[..., None]


def install_plug_in(
    monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, code: str, **points: str
) -> None:
    """Put a package on the path whose module has `code`, as an installer would.

    Args:
        monkeypatch: takes it away again; the caller clears `registry`'s memory afterwards.
        folder: of the package.
        package: its name, and its module's.
        code: of the module.
        points: objects of the module, by the name of their entry points ("_" stands for "-").
    """
    place = folder / package
    info = place / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (place / f"{package}.py").write_text(textwrap.dedent(code))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {package}:{value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    monkeypatch.syspath_prepend(place)
    registry.installed.cache_clear()
