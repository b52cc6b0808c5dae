"""JAX's persistent compilation cache: a model's second start compiles nothing."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Turns the cache on, in $LOOPED_CACHE_DIR or ~/.cache/looped, unless the program has one."""
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    home = os.environ.get("LOOPED_CACHE_DIR") or Path.home() / ".cache" / "looped"
    jax.config.update("jax_compilation_cache_dir", str(Path(home) / "xla"))
    # Steps of small models compile in less than the default threshold of a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@contextmanager
def no_cache_entries() -> Iterator[None]:
    """Compiles without leaving entries: JAX cannot read back what was made for an absent GPU."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.values[name]
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)
