"""How many tokens may follow a prompt: what is left out fits, what is asked for fits or is refused.

The server's max_model_len is 256.
"""

import pytest
from live_servers import tiny_llm

from looped.sampling_params import SamplingParams
from looped.server.api.backend import Backend
from looped.server.config import ServerConfig
from looped.server.errors import ApiError
from looped.server.metrics import Metrics
from looped.server.service import Service

FIELDS = {"max_tokens": "max_tokens"}


@pytest.fixture(scope="module")
def backend(reference):
    return Backend(reference, ServerConfig(), Service(reference, ServerConfig(), Metrics(4)))


@pytest.mark.parametrize(
    ("num_prompt_tokens", "default", "options", "expected"),
    [
        (3, 16, {}, 16),
        (240, 16, {}, 16),
        (241, 16, {}, 15),
        (255, 16, {}, 1),
        (3, None, {}, 253),
        (255, None, {}, 1),
        (3, 16, {"max_tokens": 253}, 253),
        (255, None, {"max_tokens": 1}, 1),
        (255, 16, {"min_tokens": 1}, 1),
        (3, None, {"min_tokens": 253}, 253),
        (256, 16, {"max_tokens": 0, "prompt_logprobs": 0}, 0),
        (3, 16, {"max_tokens": 254}, ("max_tokens", "at most 253, .* 3 tokens .*256.*, got 254")),
        (255, 16, {"max_tokens": 2}, ("max_tokens", "at most 1, the room .* 255 tokens .*got 2")),
        (3, 16, {"min_tokens": 17}, ("min_tokens", "min_tokens must be at most 16, .*, got 17")),
        (250, 16, {"min_tokens": 7}, ("min_tokens", "min_tokens must be at most 6, .*, got 7")),
        (250, None, {"min_tokens": 7}, ("min_tokens", "min_tokens must be at most 6, .*, got 7")),
    ],
)
def test_what_is_left_out_has_room_and_what_is_given_is_kept_to(
    backend, num_prompt_tokens, default, options, expected
):
    params = SamplingParams(**options)
    if isinstance(expected, int):
        limited = backend.limited(params, num_prompt_tokens, default=default, fields=FIELDS)
        assert limited.max_tokens == expected
        return
    param, message = expected
    with pytest.raises(ApiError, match=message) as caught:
        backend.limited(params, num_prompt_tokens, default=default, fields=FIELDS)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_small_pool_leaves_less_room_and_says_so(tiny_folder):
    llm = tiny_llm(tiny_folder, num_blocks=4 * 3)  # of 16 positions, in 4 planes
    backend = Backend(llm, ServerConfig(), Service(llm, ServerConfig(), Metrics(4)))
    for num_prompt_tokens, room in ((3, 46), (48, 1)):
        params = backend.limited(SamplingParams(), num_prompt_tokens, default=None, fields=FIELDS)
        assert params.max_tokens == room
    with pytest.raises(ApiError, match=r"at most 46, .*the KV pool holds 48 positions.*, got 47"):
        backend.limited(SamplingParams(max_tokens=47), 3, default=16, fields=FIELDS)
    backend.check_prompts([[5] * 48], "prompt", num_tokens=1)
    for num_tokens in (0, 1):
        with pytest.raises(ApiError, match=r"prompt must have at most 48 tokens \(the KV pool"):
            backend.check_prompts([[5] * 49], "prompt", num_tokens=num_tokens)


def chat_of(num_words):
    return {"messages": [{"role": "user", "content": "x" * num_words}]}


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_prompt_that_leaves_one_token_gets_it(live, is_stream):
    fields = {"ignore_eos": True, "temperature": 0, "stream": is_stream}
    body = {"prompt": [[5] * 255, [5] * 250, [5] * 9], **fields}
    if is_stream:
        body["stream_options"] = {"include_usage": True}
    response = live.post("/v1/completions", body)
    assert response.status_code == 200
    usage = response.text.rpartition('"completion_tokens":')[2].partition(",")[0]
    assert int(usage) == 1 + 6 + 16


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/chat/completions", {"max_tokens": -1}),
        ("/v1/chat/completions", {"max_completion_tokens": -1}),
        ("/v1/completions", {"max_tokens": -1}),
    ],
)
def test_a_chat_gets_all_the_room_and_so_does_who_asks_for_it(live, path, fields):
    """-1 is no limit in llama.cpp, and in the examples of clients written for it."""
    ids = live.post("/tokenize", chat_of(200)).json()["tokens"]
    prompt = len(ids)
    body = chat_of(200) if "chat" in path else {"prompt": ids}
    answer = live.post(path, {**body, "ignore_eos": True, **fields}).json()
    assert answer["usage"]["prompt_tokens"] == prompt
    assert answer["usage"]["completion_tokens"] == 256 - prompt
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_completion_gets_all_the_room_if_it_asks_for_that(live):
    body = {"prompt": [[5] * 230, [5] * 250], "ignore_eos": True, "max_tokens": -1}
    assert live.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 26 + 6


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "max_tokens"),
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
    ],
)
def test_more_than_there_is_room_for_is_refused_by_the_name_that_the_client_sent(
    live, path, name, is_stream
):
    prompt = live.post("/tokenize", chat_of(9)).json()["tokens"]
    body = {"prompt": prompt} if path == "/v1/completions" else chat_of(9)
    room = 256 - len(prompt)
    response = live.post(path, {**body, name: room + 1, "stream": is_stream})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == (
        f"{name} must be at most {room}, the room that a prompt of {len(prompt)} tokens leaves "
        f"(max_model_len is 256), got {room + 1}"
    )
