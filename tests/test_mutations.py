"""The faults of `experiments/mutations.py` can be put into the sources as they stand."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = runpy.run_path(str(ROOT / "experiments" / "mutations.py"))


@pytest.mark.parametrize("mutation", SCRIPT["MUTATIONS"], ids=lambda mutation: mutation.name)
def test_its_line_stands_once_in_the_sources(mutation):
    assert len(SCRIPT["places_of"](mutation, ROOT)) == 1
    assert mutation.before != mutation.after


@pytest.mark.parametrize("mutation", SCRIPT["MUTATIONS"], ids=lambda mutation: mutation.name)
def test_its_tests_are_there(mutation):
    assert any((ROOT / "tests" / name).exists() for name in mutation.tests)
