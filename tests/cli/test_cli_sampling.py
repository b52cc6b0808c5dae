"""Sampling options of `looped generate`."""

import json

import pytest
from command_line import looped
from engines import SMALL_FLAGS


def test_every_sampling_option_reaches_the_engine(tiny_folder, tmp_path):
    options = {
        "min_p": 0.01,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "min_tokens": 3,
        "logprobs": 2,
        "temperature": 0.7,
        "seed": 5,
        "max_tokens": 6,
    }
    flags = [
        text for name, value in options.items() for text in ("--" + name.replace("_", "-"), value)
    ]
    common = ("generate", "--model", tiny_folder, "--json", "--eos-token-id", 9, *SMALL_FLAGS)
    biased = ("--logit-bias", "9=100", "--logit-bias", "8=90.5")
    result = json.loads(looped(*common, "--prompt-ids", "5,6", *flags, *biased).stdout)
    # The stop id, the likeliest by far, is held back for three tokens.
    assert result["token_ids"] == [8, 8, 8, 9]
    assert [len(listed) for listed in result["top_logprobs"]] == [2] * 4
    assert len(result["tokens"]) == 4
    assert result["stop_reason"] == 9
    requests = tmp_path / "requests.jsonl"
    line = {"prompt_token_ids": [5, 6], "logit_bias": {"9": 100, "8": 90.5}, **options}
    requests.write_text(json.dumps(line))
    assert json.loads(looped(*common, "--requests", requests).stdout) == result


@pytest.mark.long
def test_streamed_text_ends_before_a_stop_string_and_shows_no_part_of_one(tiny_folder, tmp_path):
    common = (
        "generate", "--model", tiny_folder, "--max-tokens", 12, "--ignore-eos",
        "--repetition-penalty", 1.5, *SMALL_FLAGS,
    )  # fmt: skip
    prompt = ("--prompt-ids", "5,6,7")
    plain = json.loads(looped(*common, *prompt, "--json").stdout)
    tokens = plain["tokens"]
    assert (plain["finish_reason"], plain["stop_reason"]) == ("length", None)
    stop = tokens[3][-1] + tokens[4] + tokens[5][0]
    # The other one begins as the output does, and never comes whole.
    stops = ("--stop", stop, "--stop", tokens[0] + tokens[1] + "~")
    before = plain["text"].partition(stop)[0]
    assert looped(*common, *prompt, *stops).stdout == before + "\n"
    inclusive = looped(*common, *prompt, *stops, "--include-stop-str-in-output", "--json").stdout
    result = json.loads(inclusive)
    assert (result["text"], result["tokens"]) == (before + stop, tokens[:6])
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", stop)
    requests = tmp_path / "requests.jsonl"
    lines = [
        {"prompt_token_ids": [5, 6, 7], "stop": [stop, "~"]},
        {"prompt_token_ids": [5, 6, 7], "stop": stop, "include_stop_str_in_output": True},
        # A part that the last token leaves incomplete is text after all.
        {"prompt_token_ids": [5, 6, 7], "stop": stop, "max_tokens": 5},
        {"prompt_token_ids": [5, 6, 7]},
    ]
    requests.write_text("\n".join(map(json.dumps, lines)))
    printed = looped(*common, "--requests", requests).stdout
    texts = [before, before + stop, "".join(tokens[:5]), plain["text"]]
    assert printed == "".join(text + "\n" for text in texts)


@pytest.mark.long
def test_lines_may_ask_for_equal_samples_for_names_and_for_what_has_room(tiny_folder, tmp_path):
    requests = tmp_path / "requests.jsonl"
    lines = [
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 4},
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "n": 3},
        {"prompt_token_ids": [5, 6, 7], "logit_bias": {"1": 100}},
        {"prompt_token_ids": [5] * 28},
    ]
    requests.write_text("\n".join(map(json.dumps, lines)))
    sizes = ("--max-model-len", 32, "--max-num-seqs", 4, "--max-num-batched-tokens", 32)
    common = ("generate", "--model", tiny_folder, "--ignore-eos", "--stop", "<|im_start|>", *sizes)
    done = looped(*common, "--requests", requests, "--json")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(result["token_ids"]) for result in results] == [4, 4, 4, 4, 1, 4]
    assert [result["sample_index"] for result in results] == [0, 0, 1, 2, 0, 0]
    assert {tuple(result["token_ids"]) for result in results[:4]} == {
        tuple(results[0]["token_ids"])
    }
    assert (results[4]["text"], results[4]["stop_reason"]) == ("", "<|im_start|>")
    assert "; 13 tokens" in done.stderr
    refused = looped(*common, "--prompt-ids", "5,6,7", "--max-tokens", 30, check=False)
    assert refused.returncode == 2
    assert "3 + 30 > 32; shorten the prompt, lower max_tokens to 29, or" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--logit-bias", "x=1"), "--logit-bias takes ID=VALUE such as 12=-3.5; got 'x=1'"),
        (("--logit-bias", "12"), "--logit-bias takes ID=VALUE"),
        (("--logit-bias", "1=1", "--logit-bias", "1=2"), "got two for 1"),
        (("--logit-bias", "1=101"), "logit_bias must be in -100 to 100"),
        (("--logprobs", "2"), "--logprobs is for machines to read; add --json"),
        (("--include-stop-str-in-output",), "include_stop_str_in_output needs a stop string"),
        (("--stop", ""), "stop takes texts of 1 to 256 characters, got 0"),
        (("--repetition-penalty", "0"), "repetition_penalty must be in 0.1 to 10"),
    ],
)
def test_sampling_options_that_mean_nothing_are_refused_in_one_line(tiny_folder, flags, message):
    done = looped("generate", "a", "--model", tiny_folder, *flags, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
