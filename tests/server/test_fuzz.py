"""Whatever a body says, the answer is 200 or a refusal in OpenAI's form; never a 5xx."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looped.server.api.foreign_fields import FOREIGN_FIELDS
from looped.server.api.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["", "x", "\ud800", "\x00", "ouro", "trace", "user", "text", "1", "<|im_end|>"]
    ),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
SENSIBLE = {
    "model": st.sampled_from(["ouro-tiny", "", None, "another"]),
    "max_tokens": st.integers(-1, 6),
    "max_completion_tokens": st.integers(-1, 6),
    "temperature": st.sampled_from([0, 0.0, 0.5, 1, 1e-9, 1e9, -1]),
    "top_p": st.floats(-0.5, 1.5),
    "min_p": st.floats(-0.5, 1.5),
    "top_k": st.integers(-2, 600),
    "n": st.integers(-1, 4),
    "seed": st.integers(-1, 2**64),
    "logprobs": st.one_of(st.booleans(), st.integers(-1, 25)),
    "top_logprobs": st.integers(-1, 25),
    "echo": st.booleans(),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "stop": st.one_of(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=20)),
    "stop_token_ids": st.lists(st.integers(-5, 600), max_size=5),
    "logit_bias": st.dictionaries(st.integers(-2, 600).map(str), st.floats(-120, 120), max_size=4),
    "repetition_penalty": st.floats(0, 12),
    "min_tokens": st.integers(-1, 9),
    "min_loops": st.integers(0, 5),
    "max_loops": st.integers(0, 5),
    "exit_threshold": st.floats(-0.1, 1.1),
    "exit_mode": st.sampled_from(["ouro", "ouro_delayed", "random_lookahead", "trace", "x"]),
    "return_loops": st.booleans(),
    "do_sample": st.booleans(),
    "repeat_last_n": st.integers(-1, 64),
    "mirostat": st.integers(0, 2),
    "ignore_eos": st.booleans(),
}
PROMPTS = st.one_of(
    st.text(max_size=20),
    st.lists(st.integers(-1, 515), max_size=8),
    st.lists(st.lists(st.integers(0, 511), max_size=4), max_size=3),
    st.lists(st.text(max_size=5), max_size=3),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": st.one_of(
                st.text(max_size=10),
                st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()})),
            ),
        }
    ),
    max_size=3,
)
ROUTES = {
    "/v1/completions": (CompletionRequest, {"prompt": PROMPTS, "max_tokens": st.integers(0, 5)}),
    "/v1/chat/completions": (
        ChatRequest,
        {"messages": MESSAGES, "max_tokens": st.integers(0, 5)},
    ),
    "/tokenize": (TokenizeRequest, {"prompt": st.text(max_size=20)}),
    "/detokenize": (DetokenizeRequest, {"tokens": st.lists(st.integers(-1, 600), max_size=9)}),
}


@st.composite
def requests(draw):
    """A route and a body: what it needs, and a few fields of it, some sensible and some not."""
    path = draw(st.sampled_from(list(ROUTES)))
    model, needed = ROUTES[path]
    body = {name: draw(values) for name, values in needed.items()}
    names = st.sampled_from([*model.model_fields, *FOREIGN_FIELDS, "made_up"])
    for name in draw(st.lists(names, max_size=5, unique=True)):
        sensible = SENSIBLE.get(name)
        body[name] = draw(JSON if sensible is None or draw(st.integers(0, 9)) == 0 else sensible)
    return path, body


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(request_=requests())
@pytest.mark.long
def test_no_body_breaks_the_server(live, request_):
    path, body = request_
    response = live.post(
        path,
        content=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        is_other_model = error["code"] == "model_not_found"
        assert is_other_model is (response.status_code == 404)
        assert error["type"] == ("not_found_error" if is_other_model else "invalid_request_error")
        assert error["message"]
    elif body.get("stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in response.text, (body, response.text)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(list(ROUTES)), st.one_of(st.binary(max_size=40), JSON.map(json.dumps)))
def test_no_bytes_break_the_server(live, path, content):
    response = live.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
