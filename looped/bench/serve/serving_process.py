"""A `looped serve` of our own: started on a free port, waited for, and told to stop."""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import httpx

from looped.engine.options import EngineConfig, option_flag
from looped.errors import LoopedError

logger = logging.getLogger(__name__)

ADDRESS = re.compile(r"http://[\d.]+:\d+")
SECONDS_BETWEEN_LOOKS = 0.25
SECONDS_TO_STOP = 60.0
LAST_LINES = 5


@dataclass
class ServingProcess:
    """A server that runs, or has run."""

    process: subprocess.Popen[bytes] = field(repr=False)
    log: Path
    """What it says."""
    url: str = ""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def wait_until_ready(self, seconds: float) -> None:
        """Returns when requests are taken; LoopedError if that does not come."""
        deadline = time.monotonic() + seconds
        with httpx.Client() as client:
            while not self._is_ready(client):
                if self.exit_code is not None:
                    raise LoopedError(
                        f"the server ended with exit code {self.exit_code}: {self._last_words()}"
                    )
                if time.monotonic() > deadline:
                    raise LoopedError(
                        f"the server was not ready after {seconds:g} s; see {self.log}"
                    )
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def stop(self) -> int:
        """SIGTERM, and the exit code; LoopedError if it does not end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            raise LoopedError(
                f"the server was still there {SECONDS_TO_STOP:g} s after SIGTERM; see {self.log}"
            ) from None

    def _is_ready(self, client: httpx.Client) -> bool:
        if not self.url:
            found = ADDRESS.search(self.log.read_text(encoding="utf-8", errors="replace"))
            self.url = "" if found is None else found[0]
        try:
            return bool(self.url) and client.get(self.url + "/health").status_code == 200
        except httpx.TransportError:  # it listens a moment after it has said so
            return False

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(lines[-LAST_LINES:]) or "it said nothing"


@contextmanager
def serving(
    model: Path, options: Sequence[str], *, log: Path, start_timeout: float
) -> Iterator[ServingProcess]:
    """Serves a model until the block is left; one that was not stopped by then is killed.

    Args:
        model: folder.
        options: of `looped serve`, besides model and port.
        log: file for what it says, to be made.
        start_timeout: seconds that it may take until it is ready.

    Raises:
        LoopedError: it does not start.
    """
    # -P: a checkout's folders must not shadow the standard library's modules.
    command = [sys.executable, "-P", "-m", "looped", "serve", "--model", str(model), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "LOOPED_API_KEY"}
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, *options], stdout=said, stderr=subprocess.STDOUT, env=environment
        )
        running = ServingProcess(process, log)
        try:
            running.wait_until_ready(start_timeout)
            yield running
        finally:
            if running.exit_code is None:
                process.kill()
                process.wait()


def engine_options(config: EngineConfig) -> list[str]:
    """The command line's options that say what an engine's configuration does."""
    options = []
    for one in fields(config):
        value = getattr(config, one.name)
        flag = option_flag(one.name, one.metadata)
        if value == one.default:
            continue
        if isinstance(value, bool):
            options.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            options += [word for pair in value for word in (f"--{flag}", "=".join(pair))]
        else:
            options += [f"--{flag}", str(value)]
    return options
