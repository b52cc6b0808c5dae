"""JAX's options as the engine needs them, in place of those that the program around it has set.

With 64-bit types on, strict promotion or another precision of products, the same request would get
other tokens, or none. All that computes therefore runs with these options as JAX has them by
default, and leaves the program's own as they are. Options that only report (logs, leak checks) are
not touched. (High-range Gumbel noise has no block of its own: the sampler names its mode.)
"""

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ParamSpec, TypeVar

import jax

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CONTEXTS: dict[str, tuple[Callable[[Any], AbstractContextManager[Any]], Any]] = {
    "jax_enable_x64": (jax.enable_x64, False),
    "jax_numpy_dtype_promotion": (jax.numpy_dtype_promotion, "standard"),
    "jax_numpy_rank_promotion": (jax.numpy_rank_promotion, "allow"),
    "jax_default_matmul_precision": (jax.default_matmul_precision, None),
    "jax_allow_f16_reductions": (jax.allow_f16_reductions, True),
    "jax_default_prng_impl": (jax.default_prng_impl, "threefry2x32"),
    "jax_threefry_partitionable": (jax.threefry_partitionable, True),
    "jax_disable_jit": (jax.disable_jit, False),
    "jax_debug_nans": (jax.debug_nans, False),
    "jax_debug_infs": (jax.debug_infs, False),
    "jax_transfer_guard_host_to_device": (jax.transfer_guard_host_to_device, "allow"),
    "jax_transfer_guard_device_to_host": (jax.transfer_guard_device_to_host, "allow"),
    "jax_transfer_guard_device_to_device": (jax.transfer_guard_device_to_device, "allow"),
}
"""Of every option that could change a result or refuse a computation: what sets it for a block, and
its default; None is one, too."""


def own_jax_options() -> AbstractContextManager[Any]:
    """A block in which every option of `CONTEXTS` has its default; of this thread alone."""
    different = _different()
    if not different:
        return nullcontext()  # most often: every step comes here
    stack = ExitStack()
    for name in different:
        enter, value = CONTEXTS[name]
        stack.enter_context(enter(value))
    return stack


def with_own_jax_options(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run in such a block."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with own_jax_options():
            return function(*args, **kwargs)

    return run


def log_left_aside() -> None:
    """Says which options of the program have no effect on the engine, if there are any."""
    for name, given in _different().items():
        logger.info("%s is %s here, and has no effect on looped", name.upper(), given)


def _different() -> dict[str, Any]:
    """Options that do not have their default, with what they have."""
    given = {name: getattr(jax.config, name) for name in CONTEXTS}
    return {
        name: value
        for name, value in given.items()
        if value is not None and value != CONTEXTS[name][1]
    }
