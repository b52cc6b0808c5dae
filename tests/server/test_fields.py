"""What bodies may say: every refusal names its field."""

import pytest

CHAT = {"messages": [{"role": "user", "content": "x"}]}

BAD_OF_BOTH = [
    ("temperature", -1),
    ("temperature", "1"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 2),
    ("n", 0),
    ("n", 200),
    ("seed", -2),
    ("seed", 2**63),
    ("seed", 1000.5),
    ("seed", 1e30),
    ("presence_penalty", 3),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"512": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": "2"}),
    ("logit_bias", [1]),
    ("max_tokens", 0),
    ("max_tokens", -2),
    ("max_tokens", 1.5),
    ("max_tokens", "5"),
    ("max_tokens", True),
    ("max_tokens", 10**30),
    ("min_tokens", 17),
    ("stop", ["a"] * 17),
    ("stop", [1]),
    ("stop_token_ids[0]", ["a"]),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("min_loops", 0),
    ("min_loops", 5),
    ("max_loops", 9),
    ("exit_threshold", 1.5),
    ("exit_threshold", "0.5"),
    ("exit_mode", "trace"),
    ("exit_mode", "other"),
    ("exit_trace", [4, 4]),
    ("priority", 3),
    ("return_loops", "yes"),
    ("response_format", {"type": "json_object"}),
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),
    ("functions", [{}]),
    ("function_call", {"name": "f"}),
    ("store", 0),
    ("service_tier", 1),
]
BAD_OF_COMPLETIONS = [
    ("prompt", None),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", ""),
    ("prompt", [1, "a"]),
    ("prompt", [True]),
    ("prompt", [512]),
    ("prompt", [-1]),
    ("prompt", [10**30]),
    ("prompt", {"text": "x"}),
    ("prompt", "x " * 300),
    ("prompt", ["x"] * 3000),
    ("logprobs", 21),
    ("logprobs", True),
    ("echo", "yes"),
    ("best_of", 2),
    ("best_of", True),
    ("suffix", "end"),
    ("messages", CHAT["messages"]),
]
BAD_OF_CHAT = [
    ("messages", []),
    ("messages", "x"),
    ("messages", [{"role": "user", "content": "x " * 300}]),
    ("messages[0].role", [{"role": "tool", "content": "x"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "image_url"}]}]),
    ("messages[0].tool_calls", [{"role": "assistant", "content": "x", "tool_calls": [{}]}]),
    ("messages[0].name", [{"role": "user", "content": "x", "name": 1}]),
    ("logprobs", 1),
    ("top_logprobs", 3),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", 10**9),
    ("parallel_tool_calls", 1),
    ("modalities", ["audio"]),
    ("audio", {"voice": "x"}),
    ("web_search_options", {}),
    ("reasoning_effort", "low"),
    ("chat_template", "{{ messages }}"),
]


def check_refused(live, path, body, param):
    response = live.post(path, body)
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param, error
    assert param.split("[")[0] in error["message"] or param == "prompt", error


@pytest.mark.parametrize(("field", "value"), BAD_OF_BOTH + BAD_OF_COMPLETIONS)
def test_completions_name_the_field_that_is_wrong(live, field, value):
    body = {"prompt": "x", "max_tokens": 16, field.split("[")[0]: value}
    check_refused(live, "/v1/completions", body, field)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", "0.5", "temperature: expected a valid number, got '0.5'"),
        ("max_tokens", 1.5, "max_tokens: expected a valid integer, got 1.5"),
        ("stream", "yes", "stream: expected a valid boolean, got 'yes'"),
    ],
)
def test_a_wrong_type_is_refused_with_what_came(live, field, value, message):
    response = live.post("/v1/completions", {"prompt": "x", field: value})
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


def test_two_limits_of_a_chat_must_be_one(live):
    body = {**CHAT, "max_tokens": 16, "max_completion_tokens": 15}
    check_refused(live, "/v1/chat/completions", body, "max_completion_tokens")


BAD_WITH_ECHO = [
    ("logprobs", 25, 16),
    ("logprobs", 25, 0),
    ("stop", ["a"] * 17, 0),
    ("include_stop_str_in_output", True, 0),
    ("min_tokens", 1, 0),
    ("n", 2, 0),
]


@pytest.mark.parametrize(("field", "value", "max_tokens"), BAD_WITH_ECHO)
def test_what_an_echo_makes_of_a_field_is_blamed_on_the_field(live, field, value, max_tokens):
    body = {"prompt": "x", "echo": True, "max_tokens": max_tokens, field: value}
    check_refused(live, "/v1/completions", body, field)


def test_what_is_of_no_use_to_a_score_changes_nothing(live):
    body = {"prompt": "hello", "echo": True, "max_tokens": 0, "logprobs": 2}
    more = {"stop": ["h", "l", "<|im_end|>"], "include_stop_str_in_output": True}
    scored = [live.post("/v1/completions", fields).json() for fields in (body, {**body, **more})]
    assert scored[0]["choices"] == scored[1]["choices"]


@pytest.mark.parametrize(("field", "value"), BAD_OF_BOTH + BAD_OF_CHAT)
def test_chat_names_the_field_that_is_wrong(live, field, value):
    body = {**CHAT, "max_tokens": 16, field.split("[")[0]: value}
    if field == "max_completion_tokens":
        del body["max_tokens"]
    check_refused(live, "/v1/chat/completions", body, field)


NEUTRAL = {
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "store": False,
    "service_tier": "auto",
    "user": "somebody",
    "metadata": {"key": "value"},
    "safety_identifier": "x",
    "prompt_cache_key": "y",
    "model": "",
    "priority": 0,
    "top_k": None,
    "stop": [],
    "logit_bias": {},
    "n": 1,
}


def test_neutral_values_change_nothing(live):
    for path, body, more in (
        ("/v1/completions", {"prompt": "x"}, {"best_of": 1, "suffix": "", "echo": False}),
        (
            "/v1/chat/completions",
            CHAT,
            {"parallel_tool_calls": True, "modalities": ["text"], "audio": None, "logprobs": False},
        ),
    ):
        plain = live.post(path, {**body, "temperature": 0, "max_tokens": 4}).json()
        response = live.post(path, {**body, "temperature": 0, "max_tokens": 4, **NEUTRAL, **more})
        assert response.status_code == 200, response.text
        assert response.json()["choices"] == plain["choices"]


def test_a_body_that_is_no_json_is_refused(live):
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"prompt": NaN}'):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            response = live.post(
                path, content=content, headers={"Content-Type": "application/json"}
            )
            assert response.status_code == 400, (content[:20], response.text)
            assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("given", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_body_of_another_type_is_told_which_one(live, given):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        headers = {} if given is None else {"Content-Type": given}
        response = live.post(path, content=b'{"prompt": "x"}', headers=headers)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "application/json" in message
        assert (given or "none") in message


def test_a_prompt_that_is_too_long_says_by_how_much(live):
    error = live.post("/v1/completions", {"prompt": [7] * 256}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "256" in error["message"]


def test_unknown_routes_and_methods_have_the_same_form(live):
    for path, status in (("/v2/completions", 404), ("/v1/completions", 405)):
        response = live.get(path)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_tokenize_and_detokenize_undo_each_other(live, reference):
    for text in ("hello world", "<|im_start|>user", "\N{GRINNING FACE} é\n", ""):
        answer = live.post("/tokenize", {"prompt": text}).json()
        assert answer["tokens"] == reference.tokenizer.encode(text)
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
        assert live.post("/detokenize", {"tokens": answer["tokens"]}).json() == {"prompt": text}
    for body in ({}, {"prompt": "x", "messages": CHAT["messages"]}, {"prompt": 3}):
        assert live.post("/tokenize", body).status_code == 400
    for tokens in ([-1], [512], [2**40], ["a"], None):
        response = live.post("/detokenize", {"tokens": tokens})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith("tokens")


def test_the_interactive_page_describes_the_extensions(live):
    assert live.get("/docs").status_code == 200
    schemas = live.get("/openapi.json").json()["components"]["schemas"]
    fields = schemas["CompletionRequest"]["properties"]
    for name in (
        "min_loops",
        "max_loops",
        "exit_threshold",
        "exit_mode",
        "priority",
        "return_loops",
    ):
        assert "Looped" in fields[name]["description"], name
    assert all("description" in field for field in fields.values())
    # The page would make a field of its example of this.
    assert "additionalProperties" not in schemas["CompletionRequest"]
