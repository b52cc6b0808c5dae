"""Sampling options of `looped generate`."""

import json

import pytest
from command_line import looped


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
    common = ("generate", "--model", tiny_folder, "--json", "--eos-token-id", 9)
    biased = ("--logit-bias", "9=100", "--logit-bias", "8=90.5")
    result = json.loads(looped(*common, "--prompt-ids", "5,6", *flags, *biased).stdout)
    # The stop id, the likeliest by far, is held back for three tokens.
    assert result["token_ids"] == [8, 8, 8, 9]
    assert [len(pairs) for pairs in result["top_logprobs"]] == [2] * 4
    requests = tmp_path / "requests.jsonl"
    line = {"prompt_token_ids": [5, 6], "logit_bias": {"9": 100, "8": 90.5}, **options}
    requests.write_text(json.dumps(line))
    assert json.loads(looped(*common, "--requests", requests).stdout) == result


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--logit-bias", "x=1"), "--logit-bias takes ID=VALUE such as 12=-3.5; got 'x=1'"),
        (("--logit-bias", "12"), "--logit-bias takes ID=VALUE"),
        (("--logit-bias", "1=1", "--logit-bias", "1=2"), "got two for 1"),
        (("--logit-bias", "1=101"), "logit_bias must be in -100 to 100"),
        (("--logprobs", "2"), "--logprobs is for machines to read; add --json"),
        (("--repetition-penalty", "0"), "repetition_penalty must be in 0.1 to 10"),
    ],
)
def test_sampling_options_that_mean_nothing_are_refused_in_one_line(tiny_folder, flags, message):
    done = looped("generate", "a", "--model", tiny_folder, *flags, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
