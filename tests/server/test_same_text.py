"""A stream says what the whole answer says, and HTTP says what `LLM.generate` does."""

import json
import re

import pytest
from live_servers import MODEL

from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

BYTE_TOKENS = range(3, 259)
"""Ids of the fixture's tokens that are one byte each: all 256 of them."""
EMOJI = "\N{GRINNING FACE}"


def stream(live, path, body):
    """The objects of a stream; it must end as streams do."""
    response = live.post(path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def gathered(chunks):
    """Choices put together from a stream's chunks."""
    choices = {}
    for chunk in chunks:
        (piece,) = chunk["choices"]
        choice = choices.setdefault(piece["index"], {"text": "", "loops": [], "logprobs": None})
        assert choice.get("finish_reason") is None, "a piece after the last"
        choice["text"] += piece["text"]
        choice["loops"] += piece.get("loops", [])
        for name, values in (piece["logprobs"] or {}).items():
            choice["logprobs"] = choice["logprobs"] or {}
            choice["logprobs"].setdefault(name, []).extend(values)
        choice |= {name: piece[name] for name in ("index", "finish_reason", "stop_reason")}
    return [choices[index] for index in sorted(choices)]


def assert_same(first, second):
    """Equal, but for the last bits of numbers: two runs may batch their rows otherwise."""
    if isinstance(first, float) and isinstance(second, float):
        assert first == pytest.approx(second, abs=1e-4)
    elif isinstance(first, list) and isinstance(second, list):
        assert len(first) == len(second)
        for pair in zip(first, second, strict=True):
            assert_same(*pair)
    elif isinstance(first, dict) and isinstance(second, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    else:
        assert first == second


def check_same(live, body):
    """A completion is the same whole and as a stream; returns its choices."""
    body = {"return_loops": True, "logprobs": 1, **body}
    whole = live.post("/v1/completions", body).json()["choices"]
    pieces = gathered(stream(live, "/v1/completions", body))
    assert [choice["text"].encode() for choice in pieces] == [
        choice["text"].encode() for choice in whole
    ]
    assert_same(pieces, whole)
    for choice in whole:
        tokens = choice["logprobs"] or {"text_offset": [], "tokens": []}
        assert len(set(map(len, tokens.values()))) == 1
        for start, token in zip(tokens["text_offset"], tokens["tokens"], strict=True):
            is_cut_off = start + len(token) > len(choice["text"])
            if "\N{REPLACEMENT CHARACTER}" not in token and not is_cut_off:
                assert choice["text"].startswith(token, start) or token.startswith("<|")
    return whole


def emoji_fields(live):
    """Fields that make the model say an emoji, a byte a token: each used up once it is said."""
    ids = live.post("/tokenize", {"prompt": EMOJI}).json()["tokens"]
    assert len(ids) == 4
    bias = dict(zip(map(str, ids), (100, 70, 45, 28), strict=True))
    return {"logit_bias": bias, "repetition_penalty": 10, "temperature": 0}


@pytest.mark.long
def test_all_byte_values_in_any_order(live):
    seen = set()
    for seed in range(3):
        body = {
            "prompt": "bytes",
            "max_tokens": 200,
            "n": 8,
            "seed": seed,
            "temperature": 20.0,  # what the model thinks of them hardly matters
            "logit_bias": dict.fromkeys(map(str, BYTE_TOKENS), 100) | dict.fromkeys("012", -100),
        }
        check_same(live, body)
        chat = {key: value for key, value in body.items() if key != "prompt"} | {"logprobs": True}
        answer = live.post(
            "/v1/chat/completions", chat | {"messages": [{"role": "user", "content": "bytes"}]}
        ).json()
        for choice in answer["choices"]:
            tokens = choice["logprobs"]["content"]
            spelled = bytes(byte for token in tokens for byte in token["bytes"])
            assert spelled.decode("utf-8", "replace") == choice["message"]["content"]
            seen |= set(spelled)
    assert seen == set(range(256))


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4])
def test_an_emoji_split_over_tokens_comes_when_it_is_whole(live, max_tokens):
    body = {"prompt": "smile", "max_tokens": max_tokens, **emoji_fields(live)}
    (choice,) = check_same(live, body)
    assert choice["text"] == (EMOJI if max_tokens == 4 else "\N{REPLACEMENT CHARACTER}")
    if max_tokens == 4:
        texts = [chunk["choices"][0]["text"] for chunk in stream(live, "/v1/completions", body)]
        assert texts == ["", "", "", EMOJI, ""]
        assert choice["logprobs"]["text_offset"] == [0, 0, 0, 0]


def test_an_emoji_as_a_stop_text_is_never_shown_in_part(live):
    fields = {"prompt": "smile", "max_tokens": 9, "stop": EMOJI, **emoji_fields(live)}
    (choice,) = check_same(live, fields)
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", EMOJI)
    assert len(choice["loops"]) == 4
    (choice,) = check_same(live, fields | {"include_stop_str_in_output": True})
    assert choice["text"] == EMOJI


def test_an_echo_comes_first_with_or_without_scores(live):
    for fields in (
        {"prompt": "hello \N{GRINNING FACE} world", "max_tokens": 5, "temperature": 0},
        {"prompt": [5, 1, 249, 300, 2], "max_tokens": 3, "temperature": 0},
        {"prompt": ["a", "bc"], "n": 3, "max_tokens": 5, "seed": 1},
        {"prompt": ["a", "bc"], "n": 3, "max_tokens": 5, "temperature": 0},
        {"prompt": "hello", "max_tokens": 0},
        {"prompt": [300], "max_tokens": 2, "temperature": 0},
        {"prompt": [300], "max_tokens": 0},
    ):
        with_scores = check_same(live, fields | {"echo": True, "logprobs": 2})
        without = check_same(live, fields | {"echo": True, "logprobs": None})
        assert [choice["text"] for choice in without] == [choice["text"] for choice in with_scores]
        for choice in with_scores:
            logprobs = choice["logprobs"]
            assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
            assert all(value < 0 for value in logprobs["token_logprobs"][1:])


def test_an_echoed_prompts_text_is_the_prompt(live):
    for text in ("hello", " two  spaces\n", EMOJI):
        answer = live.complete(text, echo=True, max_tokens=0)
        assert answer["choices"][0]["text"] == text
        assert answer["usage"]["completion_tokens"] == 0
    answer = live.complete([1, 300, 2], echo=True, max_tokens=0)
    assert re.fullmatch(r"<\|im_start\|>.+<\|im_end\|>", answer["choices"][0]["text"])


def test_chat_streams_the_same_text_and_logprobs(live):
    body = {
        "messages": [{"role": "user", "content": "smile"}],
        "max_tokens": 20,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "return_loops": True,
        "logit_bias": dict.fromkeys(map(str, BYTE_TOKENS), 50),
    }
    whole = live.post("/v1/chat/completions", body).json()["choices"][0]
    pieces = [chunk["choices"][0] for chunk in stream(live, "/v1/chat/completions", body)]
    text = "".join(piece["delta"]["content"] for piece in pieces)
    assert text.encode() == whole["message"]["content"].encode()
    entries = [
        entry for piece in pieces if piece["logprobs"] for entry in piece["logprobs"]["content"]
    ]
    assert_same(entries, whole["logprobs"]["content"])
    assert [loop for piece in pieces for loop in piece["loops"]] == whole["loops"]


OPTIONS = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 11},
    "narrow": {"seed": 12, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05},
    "penalised": {
        "seed": 13,
        "presence_penalty": 0.5,
        "frequency_penalty": 1.5,
        "repetition_penalty": 1.3,
    },
    "held back": {"seed": 14, "min_tokens": 10, "stop_token_ids": [300, 301, 302, 303]},
    "early exits": {"seed": 15, "exit_threshold": 0.4, "min_loops": 1, "max_loops": 3},
    "delayed exits": {"seed": 15, "exit_threshold": 0.4, "exit_mode": "ouro_delayed"},
    "stopped": {"seed": 16, "stop": ["e", "a"]},
    "stopped at a name": {
        "seed": 17,
        "stop": ["<|im_start|>", "not in it"],
        "logit_bias": {1: 100},
        "min_tokens": 4,
        "include_stop_str_in_output": True,
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_http_says_what_generate_says(live, reference, name):
    fields = {"max_tokens": 24, "ignore_eos": True, **OPTIONS[name]}
    prompts = ["the quick brown fox", [311, 225], "x"]
    exits = {
        option: fields.pop(field)
        for field, option in (
            ("exit_threshold", "threshold"),
            ("exit_mode", "mode"),
            ("min_loops", "min_loops"),
            ("max_loops", "max_loops"),
        )
        if field in fields
    }
    params = SamplingParams(**({"temperature": 1.0} | fields), exit=ExitOptions(**exits))
    expected = reference.generate(prompts, params, show_progress=False)
    assert name != "stopped at a name" or {done.stop_reason for done in expected} == {
        "<|im_start|>"
    }
    for prompt, done in zip(prompts, expected, strict=True):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 24, "ignore_eos": True}
        (choice,) = check_same(live, body | OPTIONS[name])
        assert choice["text"] == done.text
        assert choice["loops"] == list(done.exit_depths)
        assert choice["logprobs"]["tokens"] == list(done.tokens)
        assert choice["finish_reason"] == done.finish_reason
        assert choice["stop_reason"] == done.stop_reason
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(done.logprobs, abs=1e-4)


SPECIAL_NAMES = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}


@pytest.mark.parametrize("name", SPECIAL_NAMES)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stop_that_names_a_special_token_means_its_id(live, path, name):
    """On every route, whole or streamed, and for ends that are ignored as well."""
    token_id = SPECIAL_NAMES[name]
    is_chat = path == "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "x"}]} if is_chat else {"prompt": "x"}
    body |= {"seed": 1, "min_tokens": 2, "max_tokens": 9, "ignore_eos": True}
    body |= {"logit_bias": {str(token_id): 100}, "stop": ["never", name], "return_loops": True}
    (choice,) = live.post(path, body).json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", name)
    assert len(choice["loops"]) == 3
    pieces = [chunk["choices"][0] for chunk in stream(live, path, body)]
    assert [piece["finish_reason"] for piece in pieces] == [None] * 3 + ["stop"]
    assert pieces[-1]["stop_reason"] == name
    texts = [piece["delta"]["content"] if is_chat else piece["text"] for piece in pieces]
    text = choice["message"]["content"] if is_chat else choice["text"]
    assert "".join(texts) == text
    assert "<|" not in text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_equal_choices_are_computed_once_and_counted_each(live, path):
    is_chat = path == "/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "x"}]} if is_chat else {"prompt": "x"}
    body |= {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "return_loops": True}
    body |= {"logprobs": True, "top_logprobs": 2} if is_chat else {"logprobs": 2}
    alone = live.post(path, body).json()
    before = live.service.stats.num_output_tokens
    answer = live.post(path, {**body, "n": 4}).json()
    assert live.service.stats.num_output_tokens - before == 6
    (choice,) = alone["choices"]
    assert_same(answer["choices"], [{**choice, "index": index} for index in range(4)])
    usage, once = answer["usage"], alone["usage"]
    assert usage["prompt_tokens"] == once["prompt_tokens"]
    assert usage["completion_tokens"] == 4 * once["completion_tokens"]
    assert usage["completion_loops"] == 4 * once["completion_loops"]
    chunks = stream(live, path, {**body, "n": 4, "stream_options": {"include_usage": True}})
    assert chunks.pop()["usage"]["completion_tokens"] == usage["completion_tokens"]
    indices = [piece["index"] for chunk in chunks for piece in chunk["choices"]]
    assert indices == [0, 1, 2, 3] * 7
