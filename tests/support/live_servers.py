"""A real server in this process: uvicorn in a thread, on a port of its own."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from looped.llm import LLM
from looped.server.app import create_app
from looped.server.config import ServerConfig
from looped.server.run import DrainingServer
from looped.server.service import Service

MODEL = "ouro-tiny"


@dataclass
class LiveServer:
    """One that listens. `llm.engine` belongs to its thread while anything is under way."""

    url: str
    llm: LLM
    service: Service
    uvicorn: uvicorn.Server
    thread: threading.Thread

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **options)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The answer to a completion request, which must be 200."""
        response = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Nothing is open, and the engine holds nothing."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            stats = self.service.stats
            if not (
                self.service.num_choices
                or stats.num_waiting
                or stats.num_active
                or stats.num_used_blocks
            ):
                return
            time.sleep(0.02)
        raise AssertionError(f"not idle after {seconds} seconds: {self.service.stats}")


def tiny_llm(folder: Path, **options: Any) -> LLM:
    """An LLM with small options."""
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 256}
    return LLM(str(folder), **(sizes | {"prefill_chunk_size": 16} | options))


@contextlib.contextmanager
def live_server(llm: LLM, *, is_ready: bool = True, **options: Any) -> Iterator[LiveServer]:
    """Serves until the block is left, then drains.

    Args:
        llm: the model.
        is_ready: wait for the end of the warm-up.
        options: of the `ServerConfig`.
    """
    config = ServerConfig(**({"port": 0, "served_model_name": MODEL} | options))
    app = create_app(llm, config)
    server = DrainingServer(app, config)
    thread = threading.Thread(target=server.run, name="live-server")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        live = LiveServer(f"http://127.0.0.1:{port}", llm, app.state.service, server, thread)
        while is_ready and live.get("/health").status_code != 200:
            assert not live.service.failure
            time.sleep(0.05)
        yield live
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
