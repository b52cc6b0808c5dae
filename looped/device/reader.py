"""The only place where the host reads from the device."""

from typing import Any

import jax
import numpy as np


class HostReader:
    """Waits for device arrays and counts how often; nothing else in the engine may.

    JAX's transfer guard does not see reads on a CPU, so the rule is held by this class, by a test
    over the source, and on a GPU by the guard as well.
    """

    def __init__(self) -> None:
        self.num_reads = 0

    def start(self, array: jax.Array) -> None:
        """Begins the copy of what `read` will be asked for, as soon as the launch is done."""
        # JAX counts it among the copies that nobody asked for.
        with jax.transfer_guard_device_to_host("allow"):
            array.copy_to_host_async()

    def read(self, *arrays: jax.Array) -> list[np.ndarray[Any, Any]]:
        """Values of what one launch brings; blocks until it is done."""
        self.num_reads += 1
        return [np.asarray(values) for values in jax.device_get(arrays)]

    def wait(self, arrays: object) -> None:
        """Blocks until the launches that make the arrays are done, and reads nothing."""
        jax.block_until_ready(arrays)
