"""How long does `looped convert` take in the true 1.4B shape, and how much memory?

Method: random bfloat16 values in the shape of Ouro-1.4B (24 layers, 2.87 GB) are written as
several safetensors files; a fresh process converts them, verification included, while this one
samples its RssAnon (memory that belongs to the process alone, without mapped files) every 10 ms.
Allowed: the size of the output plus 1 GiB. Needs 9 GB below the temporary folder.

    python experiments/convert_1_4b.py

Result, 2026-11-29 (2 cores, 24 GiB, CPU only; jax 0.10.2, orbax-checkpoint 0.12.8):
31.0 s, peak RssAnon 2.97 GB, output 2.87 GB, allowed 3.94 GB.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from checkpoints import published_config, write_checkpoint

CONVERT = """
import sys
from pathlib import Path
from looped.convert import convert_checkpoint
convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one conversion took."""

    seconds: float
    """Wall-clock time of the process, imports included."""
    peak_anonymous_bytes: int
    """Largest RssAnon seen."""
    output_bytes: int
    """Size of all files of the converted folder."""


def measure(folder: Path, config: dict[str, Any] | None = None) -> Measurement:
    """Makes a random bfloat16 checkpoint below `folder` and converts it in a process of its own."""
    source = write_checkpoint(
        folder / "source",
        config=config or published_config(24),
        dtype="bfloat16",
        max_shard_bytes=5 * 10**8,
    )
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(source), str(folder / "converted")],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.01)
    if process.returncode:
        raise RuntimeError(f"the conversion failed with exit code {process.returncode}")
    return Measurement(
        seconds=time.monotonic() - start,
        peak_anonymous_bytes=peak,
        output_bytes=sum(
            file.stat().st_size for file in (folder / "converted").rglob("*") if file.is_file()
        ),
    )


def anonymous_bytes(process_id: int) -> int:
    """RssAnon of a process now; 0 when it has just ended."""
    status = Path(f"/proc/{process_id}/status").read_text()
    match = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(match[1]) * 1024 if match else 0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="looped-convert-") as folder:
        result = measure(Path(folder))
    allowed = result.output_bytes + 2**30
    print(f"time             {result.seconds:8.1f} s")
    print(f"peak RssAnon     {result.peak_anonymous_bytes / 1e9:8.2f} GB")
    print(f"output           {result.output_bytes / 1e9:8.2f} GB")
    print(f"output + 1 GiB   {allowed / 1e9:8.2f} GB")
    print("within" if result.peak_anonymous_bytes <= allowed else "EXCEEDED")


if __name__ == "__main__":
    main()
