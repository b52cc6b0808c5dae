"""Requests and exit traces from files."""

import json

import pytest

from looped.errors import UsageError
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions
from looped.text.request_file import read_exit_trace, read_requests

DEFAULTS = SamplingParams(max_tokens=7, temperature=0.5)


def encode(text):
    return [ord(character) for character in text]


def read(tmp_path, *lines):
    path = tmp_path / "requests.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return read_requests(path, DEFAULTS, encode)


def test_each_line_is_a_request_with_its_own_options(tmp_path):
    first, second, third = read(
        tmp_path,
        {"prompt": "ab"},
        "",
        {"prompt_token_ids": [1, 2], "max_tokens": 3, "top_k": 4, "seed": 9, "priority": 2},
        {"prompt": "a", "exit_mode": "ouro_delayed", "exit_threshold": 0.5, "min_loops": 1},
    )
    assert (first.prompt_token_ids, first.params) == ((97, 98), DEFAULTS)
    assert second.prompt_token_ids == (1, 2)
    assert second.params == SamplingParams(
        max_tokens=3, temperature=0.5, top_k=4, seed=9, priority=2
    )
    assert third.params.exit == ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.5, min_loops=1)


def test_a_trace_and_stop_ids_are_lists_of_integers(tmp_path):
    (request,) = read(tmp_path, {"prompt": "a", "exit_trace": [4, 1], "stop_token_ids": [3]})
    assert request.params.exit == ExitOptions(trace=(4, 1))
    assert request.params.stop_token_ids == {3}


def test_a_line_may_name_every_sampling_option(tmp_path):
    options = {
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "min_tokens": 2,
        "logprobs": 3,
    }
    (request,) = read(tmp_path, {"prompt": "a", "logit_bias": {"12": -3.5, "7": 2}, **options})
    assert request.params == SamplingParams(
        max_tokens=7, temperature=0.5, logit_bias={12: -3.5, 7: 2}, **options
    )


def test_stop_strings_are_a_text_or_a_list_of_texts(tmp_path):
    one, several = read(
        tmp_path,
        {"prompt": "a", "stop": "é\n", "include_stop_str_in_output": True},
        {"prompt": "a", "stop": ["a", "b"]},
    )
    assert (one.params.stop, one.params.include_stop_str_in_output) == (("é\n",), True)
    assert (several.params.stop, several.params.include_stop_str_in_output) == (("a", "b"), False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a", "stop": 1}, "line 1: stop must be a text or a list of texts, got 1"),
        ({"prompt": "a", "stop": [""]}, "stop takes texts of 1 to 256 characters, got 0"),
        (
            {"prompt": "a", "include_stop_str_in_output": True},
            "include_stop_str_in_output needs a stop string",
        ),
        ({"prompt": "a", "logit_bias": [1]}, "logit_bias must be an object such as"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias must be an object such as"),
        ({"prompt": "a", "logit_bias": {"1": "x"}}, "logit_bias must map token ids to numbers"),
        ({"prompt": "a", "min_tokens": 8}, "min_tokens must be in 0 to max_tokens, 7; got 8"),
        ({"prompt": "a", "logprobs": "2"}, "logprobs must be a whole number"),
        ("{", "line 1"),
        ("[1]", "expected a JSON object, got list"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "either prompt or prompt_token_ids"),
        ({}, "either prompt or prompt_token_ids"),
        ({"prompt": "a", "best_of": 2}, "unknown keys best_of"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1"),
        ({"prompt": "a", "max_tokens": "x"}, "line 1"),
        ({"prompt_token_ids": "12"}, "prompt_token_ids must be a list of integers"),
        ({"prompt_token_ids": [1, 2.5]}, "prompt_token_ids must be a list of integers"),
        ({"prompt": "a", "exit_mode": "sometimes"}, "sometimes"),
        ({"prompt": "a", "max_tokens": 2.5}, "max_tokens must be a whole number"),
        ({"prompt": "a", "ignore_eos": "no"}, "ignore_eos must be true or false"),
        ({"prompt": 5}, "prompt must be text"),
    ],
)
def test_a_line_that_is_no_request_is_refused_with_its_number(tmp_path, line, message):
    with pytest.raises(UsageError, match=message):
        read(tmp_path, line)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_requests(tmp_path / "nothing", DEFAULTS, encode)
    with pytest.raises(UsageError, match="is empty; expected one JSON object a line"):
        read(tmp_path, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "not valid JSON"),
        ("[4, 1]", "one list of integers per prompt"),
        ("[[4, 1.5]]", "one list of integers per prompt"),
        ("[[4]]", "1 traces for 2 prompts"),
    ],
)
def test_a_malformed_trace_file_is_refused(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        read_exit_trace(path, 2)


def test_a_trace_file_has_one_list_per_prompt(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("[[4, 1], [4]]")
    assert read_exit_trace(path, 2) == [(4, 1), (4,)]
