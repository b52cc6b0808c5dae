"""One server for all tests that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from live_servers import LiveServer, live_server, tiny_llm

from looped.llm import LLM


@pytest.fixture(scope="session")
def server(tiny_folder: Path) -> Iterator[LiveServer]:
    with live_server(tiny_llm(tiny_folder), allow_exit_mode=True) as live:
        yield live


@pytest.fixture
def live(server: LiveServer) -> Iterator[LiveServer]:
    """The shared server; after the test nothing of it may be left."""
    yield server
    server.wait_until_idle()
    assert server.get("/health").status_code == 200


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def reference(tiny_folder: Path) -> LLM:
    """The same model and options without a server."""
    return tiny_llm(tiny_folder)
