"""JAX's persistent compilation cache: a model's second start compiles nothing."""

import logging
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

logger = logging.getLogger(__name__)


def use_compilation_cache() -> None:
    """Turns the cache on, in $LOOPED_CACHE_DIR or ~/.cache/looped, unless the program has one.

    Where nothing can be written there is none, which one line says.
    """
    given = jax.config.values["jax_compilation_cache_dir"]
    try:
        if given is None:
            folder = _default_folder()
            _check_writable(folder)
            jax.config.update("jax_compilation_cache_dir", str(folder))
            # Steps of small models compile in less than the default threshold of a second.
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        elif "://" not in given:  # else a bucket, which JAX reaches on its own
            _check_writable(Path(given))
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        logger.warning(
            "no compilation cache, so every start compiles: %s; name a folder with "
            "LOOPED_CACHE_DIR",
            error,
        )
        jax.config.update("jax_compilation_cache_dir", None)


def _default_folder() -> Path:
    home = os.environ.get("LOOPED_CACHE_DIR") or Path.home() / ".cache" / "looped"
    return Path(home) / "xla"


def _check_writable(folder: Path) -> None:
    """OSError unless files can be made in the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


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
