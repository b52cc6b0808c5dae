"""What a stage records, on disk after every step, and the table made of it."""

import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Outcome = tuple[bool, dict[str, Any]]
"""Whether a check holds, and what it found, by name."""


class Recorder:
    """Results of one stage. The file is replaced whole at every change: a killed stage loses
    nothing that it had found."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {"planned": [], "results": []}

    def device(self, device: Any) -> None:
        """Says what the stage runs on."""
        import jax

        self._values["device"] = {
            "kind": device.device_kind,
            "platform": device.platform,
            "jax": jax.__version__,
            "platform_version": device.client.platform_version.strip().splitlines()[0],
        }
        self._write()

    def plan(self, names: Sequence[str]) -> None:
        """Names everything that is to come, so that what is cut can be named."""
        self._values["planned"] = list(names)
        self._write()

    def check(self, name: str, measure: Callable[..., Outcome], *arguments: Any) -> None:
        """Runs one planned check. An exception is its failure, and the stage goes on."""
        started = time.perf_counter()
        try:
            ok, values = measure(*arguments)
        except Exception as error:
            traceback.print_exc()
            ok, values = False, {"error": f"{type(error).__name__}: {error}"[:2000]}
        seconds = round(time.perf_counter() - started, 2)
        self._values["results"].append({"name": name, "ok": ok, "seconds": seconds, **values})
        self._write()

    def fail(self, message: str) -> None:
        """The stage cannot run at all."""
        self._values["error"] = message
        self._write()

    def _write(self) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._values))
        os.replace(partial, self._path)


def markdown(results: dict[str, Any]) -> str:
    """The results as Markdown: a section a stage, a row a check."""
    stages = results["stages"]
    devices = {json.dumps(stage["device"]) for stage in stages.values() if "device" in stage}
    lines = ["# gpu-check", "", f"{results['date']}"]
    for device in map(json.loads, sorted(devices)):
        lines.append(f"{device['kind']}, JAX {device['jax']}, {device['platform_version']}")
    if results["is_rehearsal"]:
        lines.append("REHEARSAL on a CPU: no figure below was measured on a GPU.")
    for name, stage in stages.items():
        lines += ["", f"## {name}: {stage['status']}, {stage.get('seconds', 0)} s", ""]
        if stage.get("error"):
            lines += [f"{stage['error']}", ""]
        if stage["results"]:
            lines += ["| check | ok | s | values |", "|---|---|---|---|"]
        for result in stage["results"]:
            fixed = ("name", "ok", "seconds")
            values = "; ".join(
                f"{key} {value}" for key, value in result.items() if key not in fixed
            )
            values = values.replace("|", "/").replace("\n", " ")
            ok = "yes" if result["ok"] else "NO"
            lines.append(f"| {result['name']} | {ok} | {result['seconds']} | {values} |")
        done = {result["name"] for result in stage["results"]}
        if cut := [planned for planned in stage.get("planned", []) if planned not in done]:
            lines += ["", f"cut: {', '.join(cut)}"]
    return "\n".join(lines) + "\n"
