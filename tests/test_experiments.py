"""Experiments and examples are run by hand, and must not fall behind what they import."""

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for folder in ("experiments", "examples") for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_file_imports_what_it_needs_and_runs_nothing(file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(file)])
    before = set(sys.modules)
    try:
        runpy.run_path(str(file), run_name="imported")
    finally:
        # Their helpers have names of their own, such as `report`, that others must not find.
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(file.parent)):
                del sys.modules[name]
    assert capsys.readouterr().out == ""
