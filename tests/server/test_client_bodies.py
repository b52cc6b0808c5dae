"""Bodies as public clients send them: each gets the answer of a plain one, or a refusal by name."""

import json
import logging

import httpx
import pytest
from fastapi.testclient import TestClient
from live_servers import MODEL

from looped.llm import LLM
from looped.server.api.fields import OpenFields
from looped.server.api.foreign_fields import (
    FOREIGN_FIELDS,
    MOST_WARNINGS,
    WITHOUT_EFFECT,
    FieldCheck,
)
from looped.server.api.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from looped.server.app import create_app
from looped.server.config import ServerConfig
from looped.server.errors import ApiError

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
BOTH, COMPLETIONS, CHAT = ("completions", "chat"), ("completions",), ("chat",)
# Drawn, so that anything that touches a draw shows in the text.
OPTIONS = {"temperature": 0.9, "seed": 5, "max_tokens": 5}
HELLO = {"role": "user", "content": "hello"}
PLAIN = {
    "completions": {"prompt": "hello", **OPTIONS},
    "chat": {"messages": [HELLO], **OPTIONS},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def said(**more):
    """Messages in which an assistant has said nothing yet."""
    return {"messages": [HELLO, {"role": "assistant", **more}, HELLO]}


SILENT = said(content="")
# Endpoints, fields, and the fields that have the same effect.
SAME = [
    # Off, as other servers spell it.
    (BOTH, {"top_k": -1}, {}),
    (BOTH, {"top_k": 0}, {}),
    (BOTH, {"top_k": None, "top_p": 1, "min_p": 0}, {}),
    (BOTH, {"top_p": 1.0, "min_p": 0.0}, {}),
    # As clients without integers write them.
    (BOTH, {"max_tokens": 5.0, "n": 1.0, "seed": 5.0, "top_k": -1.0, "min_tokens": 0.0}, {}),
    (CHAT, {"max_completion_tokens": 5}, {}),
    (BOTH, {"n": 1}, {}),
    (BOTH, {"n": None}, {}),
    (BOTH, {"best_of": 1}, {}),
    (BOTH, {"best_of": None}, {}),
    (COMPLETIONS, {"best_of": 2, "n": 2}, {"n": 2}),
    (COMPLETIONS, {"best_of": 1, "n": 2}, {"n": 2}),
    (BOTH, {"seed": 5, "temperature": 0.9}, {}),
    (BOTH, {"temperature": 0, "seed": -1}, {"temperature": 0}),
    (BOTH, {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1}, {}),
    (BOTH, {"min_tokens": 0, "stop_token_ids": []}, {}),
    (BOTH, {"stop": []}, {}),
    (BOTH, {"stop": ""}, {}),
    (BOTH, {"stop": [""]}, {}),
    (BOTH, {"stop": None}, {}),
    (BOTH, {"stop": ["", "a"]}, {"stop": "a"}),
    (BOTH, {"logit_bias": {}}, {}),
    (BOTH, {"logit_bias": []}, {}),
    (BOTH, {"logit_bias": None}, {}),
    (BOTH, {"logprobs": False}, {}),
    (CHAT, {"logprobs": 0}, {}),
    (CHAT, {"logprobs": False, "top_logprobs": 0}, {}),
    (CHAT, {"top_logprobs": None}, {}),
    (COMPLETIONS, {"top_logprobs": 0}, {}),
    (BOTH, {"echo": False}, {}),
    (BOTH, {"suffix": ""}, {}),
    (BOTH, {"stream_options": None}, {}),
    (BOTH, {"ignore_eos": False, "include_stop_str_in_output": False}, {}),
    # OpenAI's, without effect on an answer.
    (BOTH, {"user": "somebody", "metadata": {"key": "value"}}, {}),
    (BOTH, {"store": True}, {}),
    (BOTH, {"store": False}, {}),
    (BOTH, {"service_tier": "flex"}, {}),
    (BOTH, {"service_tier": "auto", "safety_identifier": "x"}, {}),
    (BOTH, {"prompt_cache_key": "x", "prompt_cache_retention": "24h"}, {}),
    (BOTH, {"parallel_tool_calls": True}, {}),
    (BOTH, {"parallel_tool_calls": False}, {}),
    (BOTH, {"prediction": {"type": "content", "content": "x"}}, {}),
    (BOTH, {"response_format": {"type": "text"}}, {}),
    (BOTH, {"response_format": {"type": "text", "json_schema": None}}, {}),
    (BOTH, {"tools": [], "tool_choice": "none"}, {}),
    (BOTH, {"tools": [], "tool_choice": "auto"}, {}),
    (BOTH, {"tools": None, "tool_choice": None}, {}),
    (BOTH, {"tools": [TOOL], "tool_choice": "none"}, {}),
    (BOTH, {"functions": [{"name": "f"}], "function_call": "none"}, {}),
    (BOTH, {"modalities": ["text"], "audio": None, "web_search_options": None}, {}),
    (BOTH, {"reasoning_effort": "none", "verbosity": "medium"}, {}),
    (BOTH, {"model": MODEL}, {}),
    (BOTH, {"model": ""}, {}),
    # vLLM's.
    (BOTH, {"skip_special_tokens": True, "spaces_between_special_tokens": True}, {}),
    (BOTH, {"spaces_between_special_tokens": False}, {}),
    (BOTH, {"add_special_tokens": True}, {}),
    (BOTH, {"add_special_tokens": False}, {}),
    (BOTH, {"chat_template_kwargs": {}}, {}),
    (BOTH, {"chat_template": None, "documents": None, "chat_template_kwargs": None}, {}),
    (BOTH, {"add_generation_prompt": True, "continue_final_message": False}, {}),
    (BOTH, {"guided_json": None, "guided_regex": None, "guided_choice": None}, {}),
    (BOTH, {"guided_grammar": None, "guided_decoding_backend": "outlines"}, {}),
    (BOTH, {"structured_outputs": None}, {}),
    (BOTH, {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}, {}),
    (BOTH, {"bad_words": [], "allowed_token_ids": None, "logits_processors": None}, {}),
    (BOTH, {"truncate_prompt_tokens": None, "prompt_logprobs": None}, {}),
    (BOTH, {"return_token_ids": False, "return_tokens_as_token_ids": None}, {}),
    (BOTH, {"thinking_token_budget": -1, "include_reasoning": True}, {}),
    (BOTH, {"priority": 0}, {}),
    # SGLang's.
    (BOTH, {"regex": None, "ebnf": None, "json_schema": None, "structural_tag": None}, {}),
    (BOTH, {"stop_regex": None, "no_stop_trim": False, "custom_logit_processor": None}, {}),
    (BOTH, {"lora_path": None, "session_params": None, "separate_reasoning": True}, {}),
    (BOTH, {"return_hidden_states": False, "custom_params": None, "input_ids": None}, {}),
    # TGI's.
    (BOTH, {"typical_p": 1.0, "watermark": False, "truncate": None, "grammar": None}, {}),
    (BOTH, {"do_sample": True, "return_full_text": False, "top_n_tokens": 0}, {}),
    (BOTH, {"do_sample": False, "temperature": 0}, {"temperature": 0}),
    (BOTH, {"adapter_id": None, "guideline": None, "decoder_input_details": False}, {}),
    # llama.cpp's.
    (BOTH, {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1}, {}),
    (BOTH, {"tfs_z": 1, "typical_p": 1, "repeat_penalty": 1.0, "repeat_last_n": 64}, {}),
    (BOTH, {"repeat_last_n": -1, "frequency_penalty": 1}, {"frequency_penalty": 1}),
    (BOTH, {"dynatemp_range": 0, "dynatemp_exponent": 1, "top_n_sigma": -1}, {}),
    (BOTH, {"xtc_probability": 0, "xtc_threshold": 0.1, "min_keep": 0}, {}),
    (BOTH, {"dry_multiplier": 0, "dry_base": 1.75, "dry_sequence_breakers": ["\n"]}, {}),
    (BOTH, {"grammar": "", "n_probs": 0, "lora": [], "samplers": None}, {}),
    (BOTH, {"reasoning_format": "none", "parse_tool_calls": False, "t_max_predict_ms": 0}, {}),
    # Nobody's.
    (BOTH, {"made_up": 1}, {}),
    (BOTH, {"made_up": {"deep": [None, {"er": []}]}, "another": None}, {}),
    (BOTH, {"cache_prompt": True, "id_slot": -1, "request_id": "x", "cache_salt": "y"}, {}),
    # Conversations.
    (CHAT, {"messages": [{**HELLO, "type": "text"}]}, {}),
    (CHAT, {"messages": [{**HELLO, "id": "1", "tool_call_id": None, "thoughts": "hm"}]}, {}),
    (CHAT, {"messages": [{**HELLO, "reasoning_content": "hm", "reasoning": {"a": 1}}]}, {}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}, {}),
    (
        CHAT,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "hel", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "lo", "annotations": []},
                    ],
                }
            ]
        },
        {},
    ),
    (CHAT, said(), SILENT),
    (CHAT, said(content=None), SILENT),
    (CHAT, said(content=[]), SILENT),
    (CHAT, said(content=None, tool_calls=[], refusal=None, function_call=None), SILENT),
    (CHAT, said(content="", audio=None, annotations=[{"type": "url_citation"}]), SILENT),
    (CHAT, said(content="", prefix=False, partial=False, tool_calls=None), SILENT),
    # Two names, or none, for the one thing.
    (CHAT, {"prompt": None}, {}),
    (COMPLETIONS, {"messages": None, "max_completion_tokens": None}, {}),
]
# Endpoints, fields, the one to blame, and a part of what is said of it.
REFUSED = [
    # OpenAI's.
    (BOTH, {"tools": [TOOL]}, "tools", 'tool_choice "none"'),
    (BOTH, {"tools": [TOOL], "tool_choice": "auto"}, "tools", "this server calls none"),
    (BOTH, {"tools": {}}, "tools", "list"),
    (BOTH, {"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "does not serve"),
    (BOTH, {"tool_choice": {"type": "function"}}, "tool_choice", "does not serve"),
    (BOTH, {"functions": [{"name": "f"}]}, "functions", 'function_call "none"'),
    (BOTH, {"response_format": {"type": "json_object"}}, "response_format", "json_object"),
    (BOTH, {"response_format": {"type": "json_schema"}}, "response_format", "'text'"),
    (BOTH, {"modalities": ["text", "audio"]}, "modalities", "does not serve"),
    (BOTH, {"reasoning_effort": "high"}, "reasoning_effort", "got 'high'"),
    (BOTH, {"verbosity": "low"}, "verbosity", "'medium'"),
    (BOTH, {"web_search_options": {}}, "web_search_options", "does not serve"),
    (BOTH, {"best_of": 3}, "best_of", "got 3"),
    (BOTH, {"suffix": "end"}, "suffix", "does not serve"),
    (BOTH, {"store": "yes"}, "store", "boolean"),
    (CHAT, {"echo": True}, "echo", "does not serve"),
    (CHAT, {"prompt": "x"}, "prompt", "instead, give messages"),
    (COMPLETIONS, {"messages": [HELLO]}, "messages", "instead, give prompt"),
    (COMPLETIONS, {"max_completion_tokens": 3}, "max_completion_tokens", "give max_tokens"),
    (COMPLETIONS, {"top_logprobs": 2}, "top_logprobs", "give logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs", "integer"),
    (CHAT, {"top_logprobs": 1}, "top_logprobs", "needs logprobs"),
    (BOTH, {"top_k": -2}, "top_k", "at least 1"),
    (BOTH, {"seed": -2}, "seed", "0 to"),
    # vLLM's.
    (BOTH, {"guided_json": {"type": "object"}}, "guided_json", "does not serve"),
    (BOTH, {"guided_regex": "[a-z]"}, "guided_regex", "got '[a-z]'"),
    (BOTH, {"guided_choice": ["a", "b"]}, "guided_choice", "null or []"),
    (BOTH, {"guided_grammar": "root ::= x"}, "guided_grammar", "does not serve"),
    (BOTH, {"structured_outputs": {"json": {}}}, "structured_outputs", "does not serve"),
    (BOTH, {"use_beam_search": True}, "use_beam_search", "null or false"),
    (BOTH, {"length_penalty": 0.5}, "length_penalty", "null or 1"),
    (BOTH, {"bad_words": ["x"]}, "bad_words", "does not serve"),
    (BOTH, {"allowed_token_ids": [1]}, "allowed_token_ids", "does not serve"),
    (BOTH, {"prompt_logprobs": 0}, "prompt_logprobs", "echo and logprobs"),
    (BOTH, {"truncate_prompt_tokens": -1}, "truncate_prompt_tokens", "got -1"),
    (BOTH, {"skip_special_tokens": False}, "skip_special_tokens", "null or true"),
    (BOTH, {"skip_special_tokens": 1}, "skip_special_tokens", "got 1"),
    (BOTH, {"continue_final_message": True}, "continue_final_message", "does not serve"),
    (BOTH, {"add_generation_prompt": False}, "add_generation_prompt", "does not serve"),
    (BOTH, {"chat_template": "{{ messages }}"}, "chat_template", "does not serve"),
    (BOTH, {"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs", "does not serve"),
    (BOTH, {"documents": [{"text": "x"}]}, "documents", "does not serve"),
    (BOTH, {"return_token_ids": True}, "return_token_ids", "does not serve"),
    (BOTH, {"lora_request": {"id": 1}}, "lora_request", "does not serve"),
    # SGLang's.
    (BOTH, {"regex": "a+"}, "regex", "does not serve"),
    (BOTH, {"ebnf": "root ::= x"}, "ebnf", "does not serve"),
    (BOTH, {"json_schema": "{}"}, "json_schema", "does not serve"),
    (BOTH, {"lora_path": "x"}, "lora_path", "does not serve"),
    (BOTH, {"no_stop_trim": True}, "no_stop_trim", "include_stop_str_in_output"),
    # TGI's.
    (BOTH, {"typical_p": 0.9}, "typical_p", "null or 1"),
    (BOTH, {"do_sample": False}, "do_sample", "temperature 0"),
    (BOTH, {"max_new_tokens": 5}, "max_new_tokens", "give max_tokens"),
    (BOTH, {"watermark": True}, "watermark", "does not serve"),
    (BOTH, {"grammar": {"type": "regex", "value": "x"}}, "grammar", "does not serve"),
    (BOTH, {"stop_sequences": ["x"]}, "stop_sequences", "give stop"),
    # llama.cpp's.
    (BOTH, {"mirostat": 2, "mirostat_tau": 5}, "mirostat", "got 2"),
    (BOTH, {"tfs_z": 0.5}, "tfs_z", "does not serve"),
    (BOTH, {"dynatemp_range": 0.5}, "dynatemp_range", "null or 0"),
    (BOTH, {"xtc_probability": 0.5}, "xtc_probability", "does not serve"),
    (BOTH, {"dry_multiplier": 0.8}, "dry_multiplier", "does not serve"),
    (BOTH, {"repeat_penalty": 1.1}, "repeat_penalty", "give repetition_penalty"),
    (BOTH, {"repeat_last_n": 64, "presence_penalty": 1}, "repeat_last_n", "got 64"),
    (BOTH, {"n_predict": 8}, "n_predict", "give max_tokens"),
    (BOTH, {"samplers": ["top_k"]}, "samplers", "does not serve"),
    (BOTH, {"lora": [{"id": 0, "scale": 1}]}, "lora", "does not serve"),
    # This project's own.
    (BOTH, {"exit_trace": [4, 4]}, "exit_trace", "does not serve"),
    # Conversations.
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "got null"),
    (CHAT, {"messages": [{"role": "system", "content": None}]}, "messages[0].content", "a text"),
    (
        CHAT,
        {"messages": [HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[1].content",
        "'image_url'",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages[0].content",
        "'input_audio'",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{}]}]},
        "messages[0].content",
        "of type text",
    ),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tool calls"),
    (CHAT, {"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "'function'"),
    (CHAT, said(content=None, tool_calls=[TOOL]), "messages[1].tool_calls", "does not serve"),
    (CHAT, said(function_call={"name": "f"}), "messages[1].function_call", "does not serve"),
    (CHAT, said(refusal="no"), "messages[1].refusal", "does not serve"),
    (CHAT, said(content="x", prefix=True), "messages[1].prefix", "null or false"),
    (CHAT, said(audio={"id": "x"}), "messages[1].audio", "does not serve"),
]


def named(rows):
    return [
        pytest.param(endpoint, *row[1:], id=f"{endpoint}-{json.dumps(row[1])[:60]}")
        for row in rows
        for endpoint in row[0]
    ]


@pytest.fixture(scope="module")
def http(server):
    """A client that keeps its connection: there are many requests."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
    server.wait_until_idle()


def choices_of(http, endpoint, fields, *, is_stream):
    """Text and reason of each choice, whole or put together from a stream."""
    body = {**PLAIN[endpoint], **fields, "stream": is_stream}
    response = http.post(PATHS[endpoint], json=body)
    assert response.status_code == 200, response.text
    if not is_stream:
        return [
            (choice.get("text", choice.get("message", {}).get("content")), choice["finish_reason"])
            for choice in response.json()["choices"]
        ]
    found = {}
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text, _ = found.get(choice["index"], ("", None))
                text += choice.get("text", choice.get("delta", {}).get("content"))
                found[choice["index"]] = text, choice["finish_reason"]
    assert response.text.endswith("data: [DONE]\n\n")
    return [found[index] for index in sorted(found)]


@pytest.fixture(scope="module")
def plain(http):
    """What a plain body is answered, computed once for each."""
    known = {}

    def answer(endpoint, fields):
        key = endpoint, json.dumps(fields)
        if key not in known:
            known[key] = choices_of(http, endpoint, fields, is_stream=False)
        return known[key]

    return answer


@pytest.mark.parametrize(("endpoint", "fields", "like"), named(SAME))
def test_what_changes_nothing_is_answered_like_a_plain_body(http, plain, endpoint, fields, like):
    for is_stream in (False, True):
        assert choices_of(http, endpoint, fields, is_stream=is_stream) == plain(endpoint, like)


@pytest.mark.parametrize(("endpoint", "fields", "param", "fragment"), named(REFUSED))
def test_what_would_change_the_answer_is_refused_by_name(http, endpoint, fields, param, fragment):
    for stream in (False, True):
        body = {**PLAIN[endpoint], **fields, "stream": stream}
        response = http.post(PATHS[endpoint], json=body)
        error = response.json()["error"]
        assert response.status_code == 400, response.text
        assert (error["type"], error["param"]) == ("invalid_request_error", param), error
        assert fragment in error["message"]
        assert param in error["message"]
        assert len(error["message"]) <= 300


def test_a_seed_of_minus_one_is_a_fresh_one(http):
    body = {"seed": -1, "temperature": 1, "max_tokens": 12, "ignore_eos": True}
    for endpoint in BOTH:
        answers = {
            str(choices_of(http, endpoint, body, is_stream=is_stream))
            for is_stream in (False, True, False)
        }
        assert len(answers) == 3


def test_options_of_a_stream_need_one_only_if_they_say_something(http, plain):
    for options in ({}, {"include_usage": False}, {"continuous_usage_stats": None, "new": 1}):
        fields = {"stream_options": options}
        for is_stream in (False, True):
            found = choices_of(http, "chat", fields, is_stream=is_stream)
            assert found == plain("chat", {})


def test_the_tables_hold_no_field_twice_and_none_that_every_endpoint_serves():
    models = (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)
    assert not FOREIGN_FIELDS.keys() & WITHOUT_EFFECT
    for name in FOREIGN_FIELDS.keys() | WITHOUT_EFFECT:
        assert not all(name in model.model_fields for model in models), name


def test_a_foreign_field_is_off_at_its_own_values_and_nowhere_else():
    strict, default = FieldCheck(is_strict=True), FieldCheck(is_strict=False)
    for name, field in FOREIGN_FIELDS.items():
        for value in (None, *field.off):
            strict.check(OpenFields.model_validate({name: value}))
        body = {"presence_penalty": 1, name: "something else"}
        with pytest.raises(ApiError, match=f"^{name}: this server does not serve it"):
            default.check(OpenFields.model_validate(body))
    for name in WITHOUT_EFFECT:
        strict.check(OpenFields.model_validate({name: "something else"}))


TOKENIZE = [
    ({"prompt": "hello", "add_special_tokens": True, "return_token_strs": True}, None),
    ({"prompt": "hello", "add_special_tokens": False, "parse_special": True}, None),
    ({"prompt": "hello", "tools": [], "chat_template_kwargs": {}, "made_up": 1}, None),
    ({"prompt": "hello", "tools": [TOOL]}, "tools"),
    ({"prompt": "hello", "add_generation_prompt": False}, "add_generation_prompt"),
    ({"prompt": "hello", "with_pieces": True}, "with_pieces"),
]


@pytest.mark.parametrize(("body", "param"), TOKENIZE)
def test_tokenize_knows_what_changes_nothing(http, body, param):
    response = http.post("/tokenize", json=body)
    if param is None:
        plain = http.post("/tokenize", json={"prompt": "hello"})
        assert response.json() == plain.json()
    else:
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_detokenize_gives_special_tokens_in_any_case(http):
    (token_id,) = http.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"]
    body = {"tokens": [token_id], "skip_special_tokens": False, "made_up": 1}
    assert http.post("/detokenize", json=body).json() == {"prompt": "<|im_end|>"}
    response = http.post("/detokenize", json={**body, "skip_special_tokens": True})
    assert response.json()["error"]["param"] == "skip_special_tokens"


def test_special_tokens_are_added_nowhere_where_a_checkpoint_would(live, monkeypatch):
    tokenizer = type(live.service.tokenizer)
    monkeypatch.setattr(tokenizer, "has_added_tokens", property(lambda self: True))
    for path, body in (
        (PATHS["completions"], PLAIN["completions"]),
        (PATHS["chat"], PLAIN["chat"]),
        ("/tokenize", {"prompt": "x"}),
    ):
        assert live.post(path, {**body, "add_special_tokens": False}).status_code == 200
        response = live.post(path, {**body, "add_special_tokens": True})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "add_special_tokens"


@pytest.fixture
def strict(reference: LLM) -> TestClient:
    """A server that has not started: what it refuses needs no engine."""
    app = create_app(reference, ServerConfig(strict_fields=True, served_model_name=MODEL))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATHS["completions"], {**PLAIN["completions"], "made_up": 1}, "made_up"),
        (PATHS["completions"], {**PLAIN["completions"], "made_up": None}, "made_up"),
        (PATHS["chat"], {**PLAIN["chat"], "mirostat": 0, "max_token": 3}, "max_token"),
        (
            PATHS["chat"],
            {**PLAIN["chat"], "stream": True, "stream_options": {"usage": True}},
            "stream_options.usage",
        ),
        ("/tokenize", {"prompt": "x", "content": "x"}, "content"),
        ("/detokenize", {"tokens": [1], "\u00e9\n": 1}, "\\xe9\n"),
    ],
)
def test_strict_fields_refuse_what_nobody_knows(strict, path, body, param):
    response = strict.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert "no such field (--strict-fields" in error["message"]


def test_values_that_are_nested_deeply_do_no_harm(strict):
    for depth in range(100, 1100, 25):
        nested = "[" * depth + "]" * depth
        for name in ("grammar", "tools", "made_up", "response_format"):
            response = strict.post(
                PATHS["completions"],
                content=f'{{"prompt": "x", "{name}": {nested}}}',
                headers={"Content-Type": "application/json"},
            )
            assert response.status_code == 400, (depth, name, response.text)


def test_templates_see_what_is_said_and_by_whom():
    message = {**HELLO, "name": "me", "reasoning_content": "hm", "id": "1", "type": "text"}
    (turn,) = ChatRequest.model_validate({"messages": [message]}).messages
    assert turn.for_template() == {**HELLO, "name": "me", "reasoning_content": "hm"}


def test_strict_fields_still_ignore_what_changes_nothing(strict):
    body = {"messages": [{**HELLO, "type": "text"}], "mirostat": 0, "mirostat_tau": 5}
    assert strict.post("/tokenize", json=body).status_code == 200


def test_each_unknown_name_is_warned_of_once_and_not_without_end(caplog):
    check = FieldCheck(is_strict=False)

    def send(*names):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            fields = dict.fromkeys(names, 1)
            check.check(OpenFields.model_validate(fields))
        return [record.getMessage() for record in caplog.records]

    assert ["'made_up'" in line for line in send("made_up")] == [True]
    assert send("made_up", "mirostat_tau") == []
    (line,) = send("a\nb" + "x" * 1000)
    assert "\n" not in line
    assert len(line) < 300
    assert len(send(*(f"name_{index}" for index in range(3 * MOST_WARNINGS)))) == MOST_WARNINGS - 1
    assert send("one more") == []
