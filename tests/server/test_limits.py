"""Keys, origins, sizes, times, and clients that go away or do not read."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import httpx
import pytest
from live_servers import live_server, tiny_llm

from looped.server import text_work
from looped.server.config import ServerConfig
from looped.server.errors import ApiError
from looped.server.text_work import NUM_THREADS, TextWork

LONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def strict(tiny_folder):
    """A server with narrow limits, a key, and one foreign origin."""
    with live_server(
        tiny_llm(tiny_folder),
        is_ready=False,
        api_key="sésame",
        allowed_origins=["https://example.org"],
        max_body_bytes=2000,
        max_prompt_tokens=20,
        max_concurrent_requests=4,
    ) as live:
        yield live


def headers(key="sésame"):
    return {"Authorization": f"Bearer {key}".encode()}


def test_without_the_key_there_is_nothing_but_pages_and_health(strict):
    for path in ("/v1/models", "/metrics", "/status"):
        for wrong in ({}, headers("sesame"), headers("x"), {"Authorization": "sésame".encode()}):
            response = strict.get(path, headers=wrong)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert strict.get(path, headers=headers()).status_code == 200
    assert strict.post("/v1/completions", LONG).status_code == 401
    for path in ("/", "/health", "/docs", "/redoc", "/docs/assets/swagger-ui.css"):
        assert strict.get(path).status_code in (200, 503)


def test_other_origins_are_answered_only_if_they_are_allowed(strict):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-key"}
    for origin, is_allowed in (("https://example.org", True), ("https://other.org", False)):
        response = httpx.options(
            strict.url + "/v1/completions", headers={"Origin": origin, **asked}
        )
        assert (response.status_code == 200) is is_allowed
        # Also a refusal can be read, which says that the key is missing.
        response = strict.get("/v1/models", headers={"Origin": origin})
        assert response.status_code == 401
        assert ("access-control-allow-origin" in response.headers) is is_allowed


def wait_ready(live):
    while live.get("/health").status_code != 200:
        time.sleep(0.05)


def test_bodies_are_limited_also_without_a_length(strict):
    wait_ready(strict)
    body = json.dumps({"prompt": "x" * 3000}).encode()

    def pieces():
        for start in range(0, len(body), 500):
            yield body[start : start + 500]

    for content in (body, pieces()):
        response = strict.post(
            "/v1/completions",
            content=content,
            headers={"Content-Type": "application/json", **headers()},
        )
        assert response.status_code == 413
        assert "2,000" in response.json()["error"]["message"]


def test_prompts_are_limited_by_tokens(strict):
    wait_ready(strict)
    response = strict.post("/v1/completions", {"prompt": [7] * 21}, headers=headers())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert "at most 20 tokens" in response.json()["error"]["message"]


def test_overload_is_429_and_passes(strict):
    wait_ready(strict)
    body = {**LONG, "n": 3}
    with opened_stream(strict, body, headers=headers()) as lines:
        next(lines)
        for stream in (False, True):
            response = strict.post("/v1/completions", {**body, "stream": stream}, headers=headers())
            assert response.status_code == 429
            assert int(response.headers["Retry-After"]) >= 1
            assert response.json()["error"]["type"] == "rate_limit_error"
        # One more sample fits.
        small = {"prompt": "x", "max_tokens": 1}
        assert strict.post("/v1/completions", small, headers=headers()).status_code == 200
    strict.wait_until_idle()
    assert strict.post("/v1/completions", body, headers=headers()).status_code == 200
    # What could never fit is not told to try again.
    assert strict.post("/v1/completions", {**LONG, "n": 5}, headers=headers()).status_code == 400


@contextlib.contextmanager
def opened_stream(live, body, **options):
    """The lines of a stream that is left in the middle."""
    with (
        httpx.Client(timeout=60) as client,
        client.stream(
            "POST", live.url + "/v1/completions", json={**body, "stream": True}, **options
        ) as response,
    ):
        assert response.status_code == 200
        yield response.iter_lines()


@pytest.fixture
def slowed(live, monkeypatch):
    """The shared server, so slow that nothing long is over on its own while a test looks on."""
    step = live.llm.engine.step
    monkeypatch.setattr(live.llm.engine, "step", lambda: (time.sleep(0.02), step())[1])
    return live


def check_stopped_early(live, tokens_before, *, out_of):
    """The engine was told to stop: it is free soon, and most tokens were never made."""
    try:
        live.wait_until_idle(10)
    finally:
        made = live.service.stats.num_output_tokens - tokens_before
    assert 0 < made < out_of / 4


def test_a_closed_stream_frees_its_request(slowed):
    before = slowed.service.stats.num_output_tokens
    with opened_stream(slowed, {**LONG, "n": 4}) as lines:
        next(lines)
    check_stopped_early(slowed, before, out_of=4 * 200)


def test_a_closed_connection_frees_a_whole_answers_request(slowed):
    aborted = finished(slowed, "abort")
    before = slowed.service.stats.num_output_tokens
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(slowed.url + "/v1/completions", json={**LONG, "n": 8}, timeout=1.0)
    check_stopped_early(slowed, before, out_of=8 * 200)
    # Their completions are nobody's, and are not counted.
    assert finished(slowed, "abort") == aborted


def finished(live, reason):
    name = f'looped_samples_finished_total{{reason="{reason}"}}'
    lines = [line for line in live.get("/metrics").text.splitlines() if line.startswith(name)]
    return float(lines[0].split()[-1]) if lines else 0.0


def slow_socket(live, body):
    """A connection that has sent a request and has little room for the answer, at either end."""
    for listening in live.uvicorn.servers[0].sockets:  # what is accepted inherits it
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    slow = socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2])))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    request = json.dumps(body).encode()
    slow.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(request), request)
    )
    return slow


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.long
def test_a_slow_reader_loses_only_itself(live):
    """One client reads nothing of a large stream; others are served as if it were not there."""
    body = {**LONG, "max_tokens": 60, "n": 4, "logprobs": 20, "stream": True}
    with slow_socket(live, body) as slow:
        for _ in range(3):
            answer = live.complete("hello", max_tokens=20, temperature=0, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 20
        # The engine is done with it; what it has not read waits for it alone.
        wait_for(lambda: not live.service.stats.num_active)
        assert live.service.num_choices == 4
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            received += slow.recv(65536)
    events = [line for line in received.decode().splitlines() if line.startswith("data: {")]
    assert len(events) == 4 * 61


def test_a_request_that_takes_too_long_ends_with_408_or_an_error_event(tiny_folder):
    llm = tiny_llm(tiny_folder)
    with live_server(llm, request_timeout=0.5) as live:
        step = llm.engine.step
        llm.engine.step = lambda: (time.sleep(0.05), step())[1]
        response = live.post("/v1/completions", LONG)
        assert response.status_code == 408
        assert response.json()["error"]["type"] == "timeout_error"
        with opened_stream(live, LONG) as lines:
            said = [line for line in lines if line]
        assert said[-1] == "data: [DONE]"
        error = json.loads(said[-2].removeprefix("data: "))["error"]
        assert error["type"] == "timeout_error"
        assert "0.5 seconds" in error["message"]
        # A body that does not come is a request that takes too long, too.
        with socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2]))) as idle:
            idle.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            assert b" 408 " in idle.recv(4096)
        live.wait_until_idle()


@pytest.mark.long
def test_a_reader_that_never_reads_is_cut_off_after_its_time(tiny_folder, monkeypatch):
    monkeypatch.setattr("looped.server.streams.SECONDS_TO_READ", 0.2)
    # Long enough for a busy machine to answer in full before the time is over.
    with live_server(tiny_llm(tiny_folder), request_timeout=8.0) as live:
        with slow_socket(live, {**LONG, "n": 8, "logprobs": 20, "stream": True}) as slow:
            wait_for(lambda: live.service.num_choices == 8)
            wait_for(lambda: not live.service.stats.num_active)
            assert live.service.num_choices == 8
            live.wait_until_idle(30)
            received = b""
            while piece := slow.recv(65536):
                received += piece
        # The end that HTTP asks for is missing, so that the client knows.
        assert not received.endswith(b"0\r\n\r\n")


def test_abandoned_texts_hold_up_nobody_and_are_limited(tiny_folder, monkeypatch):
    """Long texts whose clients have gone stay counted until their threads are done with them."""
    llm = tiny_llm(tiny_folder)
    text, may_end, num_begun, num_room = "x" * 50_000, threading.Event(), [], 8
    monkeypatch.setattr(text_work, "MOST_LONG_TEXT", num_room * len(text))
    encode = llm.tokenizer.encode

    def slow_encode(given):
        if len(given) == len(text):
            num_begun.append(1)
            may_end.wait(60)
        return encode(given)

    monkeypatch.setattr(llm.tokenizer, "encode", slow_encode)
    with live_server(llm) as live:

        def ask(seconds):
            with contextlib.suppress(httpx.ReadTimeout):
                return httpx.post(live.url + "/tokenize", json={"prompt": text}, timeout=seconds)

        try:
            # More than there are threads: what waits is dropped when its client goes.
            leaving = [threading.Thread(target=ask, args=(0.5,)) for _ in range(6)]
            for thread in leaving:
                thread.start()
            for thread in leaving:
                thread.join()
            assert len(num_begun) == NUM_THREADS
            for path, body in (
                ("/detokenize", {"tokens": [7] * 9}),
                ("/tokenize", {"prompt": "x"}),
            ):
                assert live.post(path, body).status_code == 200
            live.complete("x", max_tokens=1)

            answers = []
            staying = [
                threading.Thread(target=lambda: answers.append(ask(60))) for _ in range(num_room)
            ]
            for thread in staying:
                thread.start()
            wait_for(lambda: len(answers) == NUM_THREADS)
            for refused in answers:
                assert refused.status_code == 429
                assert refused.headers["Retry-After"]
            # A prompt is a text like any other; long ones that cannot fit are not even counted.
            for path, body in (
                ("/detokenize", {"tokens": [7] * 50_000}),
                ("/v1/completions", {"prompt": ["x" * 500] * 100}),
            ):
                assert live.post(path, body).status_code == 429
            assert live.post("/v1/completions", {"prompt": text}).status_code == 400
            assert len(num_begun) == NUM_THREADS
        finally:
            may_end.set()
        for thread in staying:
            thread.join()
        assert [answer.status_code for answer in answers].count(200) == num_room - NUM_THREADS


def test_what_load_generators_send_at_once_by_default_may_wait():
    """`vllm bench serve` and SGLang's: a thousand requests, answered when the last one is."""
    limits = ServerConfig()
    assert limits.max_concurrent_requests > 1000
    assert limits.request_timeout >= 3600
    num_prompts, size = 500, 40_000  # of some 8,000 tokens

    async def main():
        may_end = threading.Event()
        work = TextWork(most_short_jobs=num_prompts, seconds=60)
        jobs = [
            asyncio.create_task(work.run(size, lambda: may_end.wait(60)))
            for size in [size] * num_prompts + [1] * num_prompts
        ]
        await asyncio.sleep(0.1)
        may_end.set()
        assert all(await asyncio.gather(*jobs))
        work.stop()

    asyncio.run(main())


def test_a_text_above_the_limit_of_all_is_taken_alone():
    async def main():
        may_end = threading.Event()
        work = TextWork(most_short_jobs=1, seconds=60)
        alone = asyncio.create_task(work.run(2**30, lambda: may_end.wait(60)))
        await asyncio.sleep(0.1)
        with pytest.raises(ApiError, match=r"1 long texts .* 33,554,432 characters"):
            await work.run(10**6, lambda: None)
        may_end.set()
        assert await alone
        work.stop()

    asyncio.run(main())


def test_a_prompt_that_cannot_fit_is_refused_unencoded(live, monkeypatch):
    monkeypatch.setattr(live.llm.tokenizer, "encode", lambda text: pytest.fail("encoded"))
    text = "the quick brown fox " * 1000
    for path, body in (
        ("/v1/completions", {"prompt": text}),
        ("/v1/completions", {"prompt": ["x", text]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        response = live.post(path, body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] in body
        assert "got at least" in error["message"]


def test_a_text_takes_its_time_and_the_end_does_not_wait_for_it():
    async def main():
        may_end = threading.Event()
        work = TextWork(most_short_jobs=NUM_THREADS, seconds=0.05)
        for _ in range(NUM_THREADS):
            with pytest.raises(ApiError) as caught:
                await work.run(1, lambda: may_end.wait(60))
            assert caught.value.status == 408
        for size, status in ((1, 429), (10**6, 408)):
            with pytest.raises(ApiError) as caught:
                await work.run(size, lambda: may_end.wait(60))
            assert caught.value.status == status
        work.stop()
        assert work.is_busy
        with pytest.raises(ApiError) as caught:
            await work.run(1, lambda: 3)
        assert caught.value.status == 503
        may_end.set()
        while work.is_busy:
            await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.long
def test_long_prompts_do_not_stop_the_engine(live):
    """Tokenising gives up Python's lock: another client's tokens keep coming."""
    text = "the quick brown fox " * 80_000
    gaps = []
    done = threading.Event()

    def read():
        while not done.is_set():
            last = time.monotonic()
            with opened_stream(live, LONG) as lines:
                for line in lines:
                    if line.startswith("data: {"):
                        gaps.append(time.monotonic() - last)
                        last = time.monotonic()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        started = time.monotonic()
        response = live.post("/tokenize", {"prompt": text})
        took = time.monotonic() - started
        assert response.status_code == 200
    finally:
        done.set()
        reader.join()
    assert max(gaps) < took / 2, (max(gaps), took)
