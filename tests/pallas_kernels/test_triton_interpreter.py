"""Runs the suite of all backends for Triton's interpreter, in a process of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = [Path(__file__).with_name(name) for name in ("test_backends.py", "interpreted_triton.py")]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed; pip install -e '.[dev]' has it on Linux",
)


def run_suite(*options):
    finished = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *SUITE],
        env={**os.environ, "TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
    assert "skipped" not in finished.stdout.splitlines()[-1]


@pytest.mark.long
def test_the_kernels_agree_with_the_oracle_in_the_interpreter():
    """Some random batches of each shape and form, and every tile configuration."""
    run_suite("-k", "test_random_mixed_batches or interpreted_triton")


@pytest.mark.slow
def test_the_kernels_agree_with_the_oracle_at_every_edge():
    run_suite()


@pytest.mark.slow
def test_the_kernels_agree_with_the_oracle_on_many_batches():
    run_suite("-m", "slow")
