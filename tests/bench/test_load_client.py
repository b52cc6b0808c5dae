"""The open-loop client on a virtual clock: known durations, known times; failures by kind."""

import asyncio
import errno

import httpx
import pytest
from fake_completions import FakeCompletions, chunk, steady
from load_runs import load_run
from virtual_loop import run_virtually

from looped.bench.serve.load_client import LoadClient
from looped.bench.serve.load_summary import Judgement, summarise_run
from looped.bench.serve.served_request import Failure, Objective
from looped.errors import LoopedError, UsageError
from looped.measure.arrivals import Arrival, Prompt


def arrivals(*times, output_tokens=4):
    prompt = Prompt((1, 2, 3), output_tokens)
    return [Arrival(index, time, prompt) for index, time in enumerate(times)]


def play(transport, *times, timeout=60.0, output_tokens=4):
    async def work():
        async with LoadClient(
            "http://fake", model="fake", transport=transport, timeout=timeout
        ) as client:
            return await client.play(arrivals(*times, output_tokens=output_tokens))

    return run_virtually(work())


def test_times_are_those_of_the_server_after_the_scheduled_arrival():
    served = play(FakeCompletions(), 0.0, 1.0, 1.25)
    for request, arrival in zip(served, (0.0, 1.0, 1.25), strict=True):
        assert request.failure is None
        assert request.lag == pytest.approx(0.0, abs=1e-6)
        assert request.ttft == pytest.approx(0.5)
        assert request.gaps == pytest.approx([0.1] * 3)
        assert request.tpot == pytest.approx(0.1)
        assert request.ended == pytest.approx(arrival + 0.8)
        assert request.normalised_latency == pytest.approx(0.8 / 4)
        assert request.usage == {"prompt_tokens": 3, "completion_tokens": 4}


def test_the_loop_is_open_slow_answers_delay_no_arrival():
    async def slow(index, body):
        async for piece in steady(index, body, first=100.0):
            yield piece

    served = play(FakeCompletions(slow), *(0.01 * i for i in range(300)), timeout=200.0)
    assert max(request.lag for request in served) < 1e-6
    assert all(request.failure is None for request in served)


def test_what_is_asked_for_is_a_stream_of_exactly_so_many_tokens():
    transport = FakeCompletions()
    play(transport, 0.0, output_tokens=7)
    (body,) = transport.bodies
    assert body["prompt"] == [1, 2, 3]
    assert body["max_tokens"] == 7
    assert body["ignore_eos"]
    assert body["stream"]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_a_client_that_is_kept_busy_is_late_and_says_so():
    async def hog(index, body):
        asyncio.get_running_loop().clock.now += 3.0  # three seconds in which nothing else runs
        async for piece in steady(index, body):
            yield piece

    served = play(FakeCompletions(hog), 0.0, 1.0)
    assert served[1].lag == pytest.approx(2.0, abs=1e-3)
    assert served[1].ttft > 2.5  # counted from when it was due


def test_a_chunk_of_several_tokens_is_one_gap():
    async def pairs(index, body):
        for tokens in (1, 3, 5):
            await asyncio.sleep(0.2)
            yield chunk(tokens=tokens)
        yield chunk("", finish="length", tokens=5)

    (request,) = play(FakeCompletions(pairs), 0.0, output_tokens=5)
    assert request.failure is None
    assert request.gaps == pytest.approx([0.2, 0.2])
    assert request.tpot == pytest.approx(0.1)


def test_without_usage_in_chunks_a_chunk_is_a_token_and_an_empty_end_is_none():
    async def plain(index, body):
        for text in ("a", "", "c"):  # an empty text is a part of a character
            await asyncio.sleep(0.2)
            yield chunk(text)
        yield chunk("d", finish="length")
        yield chunk("", finish="length")

    (request,) = play(FakeCompletions(plain), 0.0)
    assert request.failure is None
    assert request.output_tokens == 4
    assert len(request.chunk_times) == 4


async def _cut(index, body):
    yield chunk(tokens=1)


async def _error(index, body):
    yield chunk(tokens=1)
    yield b'data: {"error": {"message": "a launch failed"}}\n\ndata: [DONE]\n\n'


async def _short(index, body):
    yield chunk(tokens=1, finish="stop")


async def _malformed(index, body):
    yield b"data: {nonsense\n\n"


async def _foreign(index, body):
    yield b'data: {"choices": [{"delta": {}}]}\n\n'


async def _broken(index, body):
    yield chunk(tokens=1)
    raise httpx.ReadError("gone")


async def _endless(index, body):
    while True:
        await asyncio.sleep(1.0)
        yield b": alive\n\n"


@pytest.mark.parametrize(
    ("answer", "failure", "said"),
    [
        (_cut, Failure.CUT_OFF, "finish_reason"),
        (_error, Failure.ERROR_EVENT, "a launch failed"),
        (_short, Failure.WRONG_LENGTH, "expected 4 tokens, got 1"),
        (_malformed, Failure.MALFORMED, "nonsense"),
        (_foreign, Failure.MALFORMED, "delta"),
        (_broken, Failure.BROKEN, "gone"),
        (_endless, Failure.TIMEOUT, "60 seconds"),
    ],
)
def test_a_stream_that_fails_is_of_its_kind(answer, failure, said):
    (request,) = play(FakeCompletions(answer), 0.0)
    assert request.failure is failure
    assert said in request.detail


def test_a_refusal_has_its_status_and_a_dead_server_none():
    def refuse(index, body):
        if index:
            raise httpx.ConnectError("nobody is there")
        return httpx.Response(429, json={"error": {"message": "too much"}})

    refused, dead = play(FakeCompletions(refuse=refuse), 0.0, 1.0)
    assert refused.failure_kind == "refused (429)"
    assert "too much" in refused.detail
    assert dead.failure_kind == "no connection"


def test_a_server_that_knows_no_usage_in_chunks_is_asked_without():
    def refuse(index, body):
        if "continuous_usage_stats" in body["stream_options"]:
            return httpx.Response(400, text="unknown field continuous_usage_stats")
        return None

    transport = FakeCompletions(refuse=refuse)

    async def work():
        async with LoadClient("http://fake/v1/", transport=transport) as client:
            card = await client.model_card()
            await client.warm_up(arrivals(0.0)[0])
            await client.play(arrivals(0.0))
            return card, client.model

    assert run_virtually(work()) == ({"id": "fake", "vocab_size": 100}, "fake")
    assert [len(body["stream_options"]) for body in transport.bodies] == [2, 1, 1]


def test_a_server_that_does_not_follow_is_told_before_anything_is_measured():
    async def work():
        async with LoadClient("http://fake", transport=FakeCompletions(_short)) as client:
            await client.warm_up(arrivals(0.0)[0])

    with pytest.raises(LoopedError, match="wrong length: expected 4 tokens, got 1"):
        run_virtually(work())


@pytest.mark.parametrize(
    "url", ["http://host:notaport", "127.0.0.1:8000", "ftp://host", "http://", "", "http://[::1"]
)
def test_what_is_no_address_is_refused_before_anything_is_asked(url):
    with pytest.raises(UsageError, match="--url"):
        LoadClient(url)


def test_a_client_without_sockets_does_not_blame_the_server():
    def refuse(index, body):
        attempts = [OSError(errno.ECONNREFUSED, "refused"), OSError(errno.EMFILE, "too many")]
        tried = OSError("All connection attempts failed")
        tried.__cause__ = ExceptionGroup("attempts", attempts[: 1 + (index > 0)])
        raise httpx.ConnectError("All connection attempts failed") from tried

    dead, out_of_sockets = play(FakeCompletions(refuse=refuse), 0.0, 1.0)
    assert dead.failure is Failure.NO_CONNECTION
    assert out_of_sockets.failure is Failure.NO_SOCKET
    judgement = Judgement(objective=Objective())
    summary = summarise_run(load_run(dead, out_of_sockets), judgement)
    assert summary.violations[0].rule == "client_has_sockets"
    assert summary.is_limited_by_client


def test_a_model_that_is_not_there_is_named_with_those_that_are():
    async def work():
        async with LoadClient("http://fake", model="x", transport=FakeCompletions()) as client:
            await client.model_card()

    with pytest.raises(LoopedError, match="got 'x'; choose one with --model: fake"):
        run_virtually(work())
