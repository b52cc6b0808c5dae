"""Everything that only a GPU can say, in one script and ten minutes: kernels, goldens, figures.

    python experiments/gpu_check [--out DIR] [--stages kernels,goldens,…] [--wheels DIR]

Stages run in order of value, each in a process of its own with a time limit of its own; what a
stage has found is on disk at every moment, and what was cut is named. Results: gpu-check.json and
gpu-check.md in DIR. No network is needed. Without a GPU it says so and exits 3.

`--rehearse` runs the same code on a CPU with tiny sizes and interpreted kernels, to find faults of
the script; its figures are marked and mean nothing.
"""

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import markdown
from stages import NO_GPU, STAGES

HERE = Path(__file__).parent
TOTAL_SECONDS = 570.0
NO_GPU_MESSAGE = (
    "gpu-check: no NVIDIA GPU that JAX can use: {}; nothing was checked. With a GPU: pip install "
    "'looped[cuda12]' (or JAX's CUDA 13 plugin, and jax-triton). --rehearse tries the script on a "
    "CPU."
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder of results")
    parser.add_argument("--stages", default=",".join(STAGES), help="which, separated by commas")
    parser.add_argument("--wheels", type=Path, help="folder with a wheel of jax-triton")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU")
    arguments = parser.parse_args()
    chosen = arguments.stages.split(",")
    if unknown := [name for name in chosen if name not in STAGES]:
        parser.error(f"expected stages of {', '.join(STAGES)}; got {', '.join(unknown)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="looped-gpu-check-") as folder:
        environment = stage_environment(arguments, Path(folder))
        results = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "is_rehearsal": arguments.rehearse,
            "stages": {},
        }
        # A CPU takes longer than what is rehearsed.
        patience = 5.0 if arguments.rehearse else 1.0
        deadline = time.monotonic() + TOTAL_SECONDS * patience
        for name in (name for name in STAGES if name in chosen):
            limit = min(STAGES[name].seconds * patience, deadline - time.monotonic())
            stage = run_stage(name, limit, arguments, environment)
            if stage["status"] == "no GPU" and not results["stages"]:
                print(NO_GPU_MESSAGE.format(stage["error"]), file=sys.stderr)
                return NO_GPU
            results["stages"][name] = stage
            write(arguments.out, results)
    failed = [name for name, stage in results["stages"].items() if stage["status"] != "passed"]
    print((arguments.out / "gpu-check.md").read_text())
    if failed:
        print(f"gpu-check: not passed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def run_stage(
    name: str, limit: float, arguments: argparse.Namespace, environment: dict[str, str]
) -> dict:
    """One stage in its own process; what it has written by then is its result."""
    path = arguments.out / f"{name}.json"
    path.unlink(missing_ok=True)
    if limit <= 0:
        return {"status": "cut", "error": f"no time left of {TOTAL_SECONDS:.0f} s", "results": []}
    print(f"gpu-check: {name}, at most {limit:.0f} s", file=sys.stderr, flush=True)
    command = [sys.executable, "-P", str(HERE / "stages.py"), name, str(path)]
    command += ["--rehearse"] if arguments.rehearse else []
    started, status, error = time.monotonic(), "passed", None
    try:
        done = subprocess.run(command, env=environment, timeout=limit, check=False)
        if done.returncode == NO_GPU:
            status = "no GPU"
        elif done.returncode != 0:
            status, error = "failed", f"exit code {done.returncode}; see the output above"
    except subprocess.TimeoutExpired:
        status, error = "cut", f"its {limit:.0f} s were over"
    stage = json.loads(path.read_text()) if path.exists() else {"results": [], "planned": []}
    if status == "passed" and any(not result["ok"] for result in stage["results"]):
        status = "failed"
    seconds = round(time.monotonic() - started, 1)
    return {"status": status, "seconds": seconds, **stage, "error": error or stage.get("error")}


def stage_environment(arguments: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Variables of the stages' processes.

    Args:
        arguments: of the command; jax-triton comes from `wheels` if it is not installed.
        folder: an empty one, for links and unpacked wheels.
    """
    environment = os.environ | {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Kept between runs: a second run has the time for what the first one cut.
        "JAX_COMPILATION_CACHE_DIR": os.environ.get(
            "JAX_COMPILATION_CACHE_DIR", str(Path.home() / ".cache" / "looped" / "gpu-check")
        ),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    root = HERE.parents[1]
    # A folder that holds only a link to the package: the root on sys.path would put `sched` of the
    # checkout in the place of the standard library's.
    (folder / "looped").symlink_to(root / "looped")
    paths = [str(folder), str(HERE), str(root / "tests" / "support")]
    if arguments.wheels is not None and importlib.util.find_spec("jax_triton") is None:
        target = folder / "wheels"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
                *("--find-links", str(arguments.wheels), "--target", str(target), "jax-triton"),
            ],
            check=True,
        )
        paths.append(str(target))
    if arguments.rehearse:
        environment["JAX_PLATFORMS"] = "cpu"
    if before := os.environ.get("PYTHONPATH"):
        paths.append(before)
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def write(folder: Path, results: dict) -> None:
    """Both forms of the results so far."""
    (folder / "gpu-check.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "gpu-check.md").write_text(markdown(results))


if __name__ == "__main__":
    sys.exit(main())
