"""GPUs that need not be there: their descriptions for XLA, and what their data sheets say.

A description lies in `looped.pallas_kernels/targets`, a private text form of jaxlib's, written by
hand from public data sheets.
"""

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

import jax

from looped.errors import UsageError
from looped.programs.compile_target import CompileTarget


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """Peak rates as the vendor states them. No measurement."""

    memory_bandwidth: float
    """Bytes per second."""
    bfloat16_flops: float
    """Dense bfloat16 operations per second."""
    source: str


DATA_SHEETS: Mapping[str, DataSheet] = MappingProxyType(
    {
        "h200": DataSheet(
            memory_bandwidth=4.8e12,
            bfloat16_flops=989e12,
            source="NVIDIA H200 Tensor Core GPU data sheet, H200 SXM, dense",
        ),
        "a100": DataSheet(
            memory_bandwidth=2.039e12,
            bfloat16_flops=312e12,
            source="NVIDIA A100 Tensor Core GPU data sheet, A100 80GB SXM, dense",
        ),
    }
)

PLUGINS = ("jax-cuda12-pjrt", "jax-cuda13-pjrt")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A GPU to compile for."""

    name: str
    description: str
    """For XLA, as text."""
    data_sheet: DataSheet
    device: jax.Device
    """Stands for the GPU; nothing can run on it."""

    @property
    def compile_target(self) -> CompileTarget:
        """For `Executables`."""
        return CompileTarget(
            sharding=jax.sharding.SingleDeviceSharding(self.device),
            device_kind=self.device.device_kind,
        )

    @property
    def architecture(self) -> str:
        """The name that assemblers have for it: sm_80, or sm_90a with its own instructions."""
        major, minor = self._number("major"), self._number("minor")
        is_specific = "ACCELERATED_FEATURES" in self.description
        return f"sm_{major}{minor}{'a' if is_specific else ''}"

    @property
    def memory_bytes(self) -> int:
        return self._number("device_memory_size")

    @property
    def max_shared_bytes(self) -> int:
        """Shared memory that one block may ask for."""
        return self._number("shared_memory_per_block_optin")

    def _number(self, name: str) -> int:
        match = re.search(rf"\b{name}: (\d+)", self.description)
        assert match is not None, f"{name} in the description of {self.name}"
        return int(match[1])


def load_target(name: str) -> Target:
    """The target of a name.

    Raises:
        UsageError: an unknown name, or no plugin to compile with.
    """
    if name not in DATA_SHEETS:
        raise UsageError(f"target must be one of {', '.join(DATA_SHEETS)}; got {name!r}")
    require_plugin()
    from jax.experimental import topologies

    folder = files("looped.pallas_kernels") / "targets"
    description = (folder / f"{name}.txtpb").read_text(encoding="utf-8")
    topology = topologies.get_topology_desc(
        platform="cuda", topology="1x1x1", target_config=description
    )
    return Target(
        name=name,
        description=description,
        data_sheet=DATA_SHEETS[name],
        device=topology.devices[0],
    )


def require_plugin() -> None:
    """Checks for JAX's CUDA plugin, which compiles without a GPU and without NVIDIA's packages.

    Raises:
        UsageError: it is not installed.
    """
    if not has_plugin():
        raise UsageError(
            "compiling for a GPU that is not there needs jax-cuda12-plugin and jax-cuda12-pjrt "
            f"of JAX's version, {jax.__version__}; got neither: pip install 'looped[aot]'"
        )


def has_plugin() -> bool:
    """Whether JAX's CUDA plugin is installed, of any CUDA version."""
    installed = {each.name.lower() for each in importlib.metadata.distributions() if each.name}
    return not installed.isdisjoint(PLUGINS)
