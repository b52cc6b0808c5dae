"""The stages by name, and the process that runs one: `python stages.py NAME RESULT.json`."""

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

NO_GPU = 3
"""Exit code where JAX finds no NVIDIA GPU."""


@dataclass(frozen=True)
class Stage:
    """A stage of the check; its module has a function `run(recorder, is_rehearsal)`."""

    module: str
    seconds: float
    """Time limit."""


STAGES = {
    "kernels": Stage("check_kernels", 80.0),
    "goldens": Stage("check_goldens", 110.0),
    "agreement": Stage("check_agreement", 50.0),
    "transfers": Stage("check_transfers", 30.0),
    "timings": Stage("check_timings", 130.0),
    "idle": Stage("check_idle", 90.0),
    "interference": Stage("check_interference", 80.0),
}
"""In order of value: what comes first is least likely to be cut."""


def main() -> int:
    name, path, is_rehearsal = sys.argv[1], Path(sys.argv[2]), "--rehearse" in sys.argv[3:]
    import jax
    from report import Recorder

    recorder = Recorder(path)
    try:
        devices = jax.devices()
    except RuntimeError as error:
        recorder.fail(str(error))
        return NO_GPU
    if devices[0].platform not in ("gpu", "cuda") and not is_rehearsal:
        recorder.fail(f"JAX {jax.__version__} has found {devices[0].platform} only")
        return NO_GPU
    recorder.device(devices[0])
    importlib.import_module(STAGES[name].module).run(recorder, is_rehearsal)
    return 0


if __name__ == "__main__":
    sys.exit(main())
