"""What a benchmark ran on, for the record beside its numbers."""

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from looped.errors import LoopedError


def describe_machine() -> dict[str, Any]:
    """Date, processor, load, devices and versions; imports JAX."""
    return describe_host() | {"devices": devices()}


def devices() -> list[str]:
    """What JAX finds, and takes hold of, in this process."""
    import jax

    return [f"{device.platform}: {device.device_kind}" for device in jax.devices()]


def devices_seen_apart() -> list[str]:
    """The same in a process that ends at once: a server needs the devices for itself."""
    code = "import json; from looped.measure.machine import devices; print(json.dumps(devices()))"
    # -P: a checkout's folders must not shadow the standard library's modules.
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoopedError(f"JAX finds no device: {done.stderr.strip().rpartition(chr(10))[2]}")
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def describe_host() -> dict[str, Any]:
    """The same without devices, which belong to the server where a client measures one."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    date_and_version = describe_code()
    return {
        "date": date_and_version["date"],
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average_at_start": load[0] if load else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "looped": date_and_version["looped"],
    }


def describe_code() -> dict[str, str]:
    """Date and looped's version, for results that no machine has a part in."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "looped": version("looped"),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
