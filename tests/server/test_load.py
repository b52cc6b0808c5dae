"""Many clients at once, good and bad: nobody's tokens are lost, and nothing is left behind."""

import asyncio
import gc
import json
import random
import socket
from pathlib import Path

import httpx
import pytest

from looped.sampling_params import SamplingParams

NUM_CLIENTS = 64
REQUESTS_EACH = 3
MAX_TOKENS = 24
SLOW_TOKENS = 100
"""Of readers that are slow: with their log-probabilities, more than the buffers on the way hold."""
SMALL_BUFFER = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)]
PROMPTS = ["a", "the quick brown fox", "hello world " * 6, [7, 300, 9], "x" * 90]
CASES = [(prompt, seed) for prompt in PROMPTS for seed in (1, 2)]


@pytest.fixture(scope="module")
def answers(reference):
    """Text and loops of every case, from the library; by the number of tokens."""

    def of(max_tokens):
        params = [
            SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed, ignore_eos=True)
            for _, seed in CASES
        ]
        done = reference.generate([prompt for prompt, _ in CASES], params, show_progress=False)
        return [(completion.text, list(completion.exit_depths)) for completion in done]

    return {max_tokens: of(max_tokens) for max_tokens in (MAX_TOKENS, SLOW_TOKENS)}


class Client:
    """One of the crowd: a few requests, each of a kind that the dice choose."""

    def __init__(self, url, answers, seed):
        self._url = url + "/v1/completions"
        self._answers = answers
        self._dice = random.Random(seed)
        self.num_tokens = 0

    async def run(self):
        async with httpx.AsyncClient(timeout=120) as http:
            for _ in range(REQUESTS_EACH):
                kind = self._dice.choice(
                    [self.whole, self.read, self.read, self.leave, self.dawdle, self.spoil]
                )
                case = self._dice.randrange(len(CASES))
                await kind(http, case)

    def body(self, case, **fields):
        prompt, seed = CASES[case]
        options = {"max_tokens": MAX_TOKENS, "ignore_eos": True, "return_loops": True}
        return {"prompt": prompt, "seed": seed, **options, **fields}

    async def whole(self, http, case):
        response = await http.post(self._url, json=self.body(case))
        assert response.status_code == 200, response.text
        (choice,) = response.json()["choices"]
        assert (choice["text"], choice["loops"]) == self._answers[MAX_TOKENS][case]
        self.num_tokens += MAX_TOKENS

    async def read(self, http, case, *, pause=0.0, num_lines=None, **fields):
        """Reads a stream, with a pause after its first event, or leaves in the middle of it."""
        text, loops, is_done = "", [], False
        body = self.body(case, stream=True, **fields)
        async with http.stream("POST", self._url, json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if num_lines is not None and len(loops) >= num_lines:
                    break
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    text += choice["text"]
                    loops += choice["loops"]
                    await asyncio.sleep(pause)
                    pause = min(pause, 0.01)
                is_done = is_done or line == "data: [DONE]"
        expected_text, expected_loops = self._answers[body["max_tokens"]][case]
        if num_lines is None:
            assert is_done
            assert (text, loops) == (expected_text, expected_loops)
        assert expected_text.startswith(text)
        assert loops == expected_loops[: len(loops)]
        self.num_tokens += len(loops)

    async def dawdle(self, http, case):
        """Has little room, and makes none for a while: the server cannot send what it has."""
        transport = httpx.AsyncHTTPTransport(socket_options=SMALL_BUFFER)
        async with httpx.AsyncClient(timeout=120, transport=transport) as slow:
            await self.read(slow, case, pause=4.0, max_tokens=SLOW_TOKENS, logprobs=20)

    async def leave(self, http, case):
        if self._dice.random() < 0.5:
            await self.read(http, case, num_lines=self._dice.randrange(MAX_TOKENS))
        else:
            task = asyncio.create_task(http.post(self._url, json=self.body(case)))
            await asyncio.sleep(self._dice.random() * 0.2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def spoil(self, http, case):
        content = self._dice.choice(
            [
                b"",
                b"{",
                b"\xff" * 50,
                json.dumps(self.body(case, prompt="x " * 5000)).encode(),
                json.dumps(self.body(case, temperature=-3)).encode(),
                json.dumps(self.body(case, grammar="x", stream=True)).encode(),
                b'{"prompt": "' + b"x" * (5 * 2**20) + b'"}',
            ]
        )
        response = await http.post(
            self._url, content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code in (400, 413)
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def crowd(live, answers, seed):
    """Returns the tokens that were read, and how many connections took no more of it."""
    clients = [Client(live.url, answers, f"{seed}/{index}") for index in range(NUM_CLIENTS)]
    held = set()

    async def watch():
        while True:
            connections = tuple(live.uvicorn.server_state.connections)
            held.update(
                other for other in connections if other.transport.get_write_buffer_size() > 8192
            )
            await asyncio.sleep(0.02)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(client.run() for client in clients))
    watcher.cancel()
    return sum(client.num_tokens for client in clients), len(held)


def resident_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("num_waves", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.long
def test_a_crowd_loses_no_token_and_leaves_nothing_behind(live, answers, num_waves):
    for listening in live.uvicorn.servers[0].sockets:  # what is accepted inherits it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sizes = []
    for wave in range(num_waves):
        num_tokens, num_held = asyncio.run(crowd(live, answers, wave))
        assert num_tokens > 1000
        assert num_held >= 5, num_held
        live.wait_until_idle()
        engine, service = live.llm.engine, live.service
        assert engine.scheduler.num_free_blocks == service.stats.num_blocks
        assert engine.runner.prompt_pool.num_free == engine.config.max_num_seqs
        assert not engine.has_unfinished_requests()
        assert not engine._unfinished
        assert not service._owners
        assert not service._texts._requests
        sizes.append(resident_bytes())
    if num_waves > 1:  # the first one fills arenas and caches that stay
        assert sizes[-1] - sizes[1] < 16 * 2**20, sizes
    # The next one is answered as if nobody had been there.
    (prompt, seed), (text, _) = CASES[0], answers[MAX_TOKENS][0]
    body = {"prompt": prompt, "seed": seed, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    assert live.post("/v1/completions", body).json()["choices"][0]["text"] == text
