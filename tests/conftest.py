"""Fixtures shared by all tests: the two tiny checkpoints and their goldens."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Nothing may reach for the network; read when huggingface_hub is first imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# With JAX's CUDA plugin installed and no GPU, JAX complains at every start unless it is told.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

FIXTURES = Path(__file__).parent / "fixtures"

# Two workers and the commands they start compile the same programs: let them share every one. A
# small one is read in 5 ms and compiled in 30.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "xla-tests")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


@dataclass(frozen=True)
class Golden:
    """A tiny checkpoint with what an independent float64 oracle says about it."""

    folder: Path
    prompts: list[list[int]]
    runs: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]


def load_golden(name: str) -> Golden:
    folder = FIXTURES / name
    values = json.loads((folder / "golden.json").read_text())
    with np.load(folder / "golden.npz") as arrays:
        return Golden(folder, values["prompts"], values["runs"], dict(arrays))


@pytest.fixture(scope="session", params=["ouro-tiny", "ouro-tiny-gqa"])
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden(request.param)


@pytest.fixture(scope="session")
def square_golden() -> Golden:
    """The fixture whose attention matrices are all square: no shape check sees a transpose."""
    return load_golden("ouro-tiny")


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return FIXTURES / "ouro-tiny"


@pytest.fixture(scope="session", autouse=True)
def shared_steps() -> Iterator[None]:
    """Engines of one shape share their steps; a run of pure tests has no engine, and no JAX."""
    if "jax" not in sys.modules:
        yield
        return
    from shared_steps import SharedSteps

    with pytest.MonkeyPatch.context() as patch:
        SharedSteps().install(patch)
        yield
