"""Documentation that names files, tests and figures must not outlive them."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_file_exists(page):
    names = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    for name in re.findall(r"`(?:[\w/]*/)?(\w+\.py)", page.read_text()):
        assert name in names, name


def test_every_named_test_exists():
    tests = defaultdict(str)
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests[path.name] += path.read_text()
    text = (ROOT / "docs" / "mixed-batching.md").read_text()
    named = re.findall(r"(test_\w+\.py)::(test_\w+)", text)
    assert len(named) > 10
    for file, test in named:
        assert f"def {test}(" in tests[file], f"{file}::{test}"


def test_the_gap_table_and_picture_are_what_the_scheduler_does(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "experiments/mixing_gap.py", "--svg", tmp_path / "gap.svg"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for page in (ROOT / "README.md", ROOT / "docs" / "mixed-batching.md"):
        assert done.stdout in page.read_text(), page.name
    assert (tmp_path / "gap.svg").read_text() == (ROOT / "docs/mixed-batching.svg").read_text()
