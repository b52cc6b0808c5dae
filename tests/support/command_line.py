"""The `looped` command in a process of its own, as a user types it."""

import os
import subprocess
import sys
from pathlib import Path


def looped(*arguments, stdin="", check=True):
    done = subprocess.run(
        [str(Path(sys.executable).with_name("looped")), *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "200"},
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done
