"""The GPU architectures that the kernels are compiled for: "sm_" and the compute capability."""

import re
from collections.abc import Mapping
from types import MappingProxyType

import jax
from jax.sharding import get_abstract_mesh

ARCHITECTURES = ("sm_80", "sm_90")
"""Those that every backend of kernels has tiles for."""

SPILL_LIMIT = 32
"""Bytes per thread that a kernel may keep in memory for want of registers."""

# The names by which GPUs call themselves.
DEVICE_KINDS: Mapping[str, str] = MappingProxyType(
    {"A100": "sm_80", "H100": "sm_90", "H200": "sm_90"}
)

# Its tiles fit into the shared memory of every architecture.
DEFAULT_ARCHITECTURE = "sm_80"


def architecture_of(device: jax.Device) -> str:
    """The architecture of a device, real or from a topology; the default for a CPU.

    Raises:
        ValueError: a GPU that no kernel has tiles for.
    """
    if device.platform == "cpu":
        return DEFAULT_ARCHITECTURE
    architecture = f"sm_{str(device.compute_capability).replace('.', '')}"
    check_architecture(architecture)
    return architecture


def architecture_here() -> str:
    """Of the device that code being traced is for: an abstract device's, or the default one's.

    Raises:
        ValueError: a GPU that no kernel has tiles for.
    """
    abstract = get_abstract_mesh().abstract_device
    if abstract is None:
        return architecture_of(jax.devices()[0])
    for name, architecture in DEVICE_KINDS.items():
        if re.search(rf"\b{name}\b", abstract.device_kind):
            return architecture
    raise ValueError(
        f"expected an abstract device among {', '.join(DEVICE_KINDS)}, got {abstract.device_kind!r}"
    )


def check_architecture(architecture: str) -> None:
    """Refuse what has no tiles.

    Raises:
        ValueError: not one of `ARCHITECTURES`.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"attention kernels: expected a GPU architecture of {', '.join(ARCHITECTURES)}, "
            f"got {architecture!r}; choose the backend xla there"
        )
