"""What a benchmark ran on, for the record beside its numbers."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Date, processor, load, devices and versions; imports JAX."""
    import jax

    return describe_host() | {
        "devices": [f"{device.platform}: {device.device_kind}" for device in jax.devices()]
    }


def describe_host() -> dict[str, Any]:
    """The same without devices, which belong to the server where a client measures one."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average_at_start": load[0] if load else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "looped": version("looped"),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
