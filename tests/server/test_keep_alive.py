"""Comments in streams where nothing comes for long: proxies see life, clients see nothing."""

import json
import time

import httpx
import openai
import pytest
from live_servers import MODEL, live_server, tiny_llm

SECONDS = 0.05
COMMENT = ": keep-alive"
PROMPT = {"prompt": list(range(260, 290)), "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "hello there"}], "temperature": 0}
ENDPOINTS = [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)]


def slowed(llm, is_slow):
    """Steps take three times the silence that a comment breaks, where `is_slow` says so."""
    step = llm.engine.step

    def slow_step():
        output = step()
        if is_slow(output):
            time.sleep(3 * SECONDS)
        return output

    llm.engine.step = slow_step
    return llm


@pytest.fixture(scope="module")
def slow_prompts(tiny_folder):
    """A server whose launches take long until a first token is there."""
    llm = slowed(tiny_llm(tiny_folder), lambda output: not output.tokens)
    with live_server(llm, keep_alive_seconds=SECONDS) as live:
        yield live


def lines_of(live, path, body):
    """The lines of a stream, when each was read, and when the headers were."""
    body = {"max_tokens": 3, "ignore_eos": True, "stream": True, **body}
    with httpx.stream("POST", live.url + path, json=body, timeout=60) as response:
        assert response.status_code == 200
        started = time.monotonic()
        return [(line, time.monotonic() - started) for line in response.iter_lines() if line]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_a_prompt_that_takes_long_is_a_stream_of_comments_at_first(
    slow_prompts, server, path, body
):
    lines = lines_of(slow_prompts, path, body)
    first = next(index for index, (line, _) in enumerate(lines) if line != COMMENT)
    assert first >= 2
    times = [seconds for _, seconds in lines[:first]]
    assert times[0] < lines[first][1]
    assert lines[-1][0] == "data: [DONE]"
    # Without the comments it is the stream of a server that is not slow.
    without = [line for line, _ in lines if line != COMMENT]
    assert texts_of(without) == texts_of(line for line, _ in lines_of(server, path, body))


def texts_of(lines):
    events = [json.loads(line.removeprefix("data: ")) for line in list(lines)[:-1]]
    choices = [event["choices"][0] for event in events]
    return [choice.get("text", choice.get("delta", {}).get("content")) for choice in choices]


def test_the_openai_package_does_not_see_them(slow_prompts):
    options = {"model": MODEL, "max_tokens": 3, "stream": True}
    with openai.OpenAI(base_url=slow_prompts.url + "/v1", api_key="none", max_retries=0) as client:
        pieces = client.completions.create(**PROMPT, **options)
        assert [piece.object for piece in pieces] == ["text_completion"] * 4
        pieces = client.chat.completions.create(**CHAT, **options)
        assert {piece.object for piece in pieces} == {"chat.completion.chunk"}


def test_silence_between_tokens_is_broken_too_and_0_is_never(tiny_folder):
    for seconds, has_comments in ((SECONDS, True), (0, False)):
        llm = slowed(tiny_llm(tiny_folder), lambda output: output.tokens)
        with live_server(llm, keep_alive_seconds=seconds) as live:
            lines = [line for line, _ in lines_of(live, "/v1/completions", PROMPT)]
        middle = lines[lines.index(next(line for line in lines if line != COMMENT)) + 1 :]
        assert (COMMENT in middle) is has_comments
        assert len([line for line in lines if line != COMMENT]) == 5  # tokens, the end, [DONE]
