"""Perplexity of given texts: through `LLM.score`, `looped score` and its JSON."""

import json
from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest
from command_line import looped
from engines import SMALL_FLAGS, make_llm
from numpy_sampler import numpy_logprobs

from looped import UsageError
from looped.cli.score import print_table
from looped.engine.outputs import Completion, LoopScores
from looped.sched import FinishReason
from looped.text.perplexity import perplexities, score_to_json


@pytest.fixture(scope="module")
def llm(tiny_folder):
    return make_llm(tiny_folder)


@pytest.fixture
def texts_file(tmp_path, square_golden):
    path = tmp_path / "texts.jsonl"
    texts = [{"prompt_token_ids": prompt} for prompt in square_golden.prompts[1:4]]
    texts.append({"prompt": "what is 1 + 1?"})
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return path


def expected_logprobs(golden, index, loop):
    logprobs = numpy_logprobs(golden.arrays[f"logits_{index}"][loop - 1, :-1])
    return logprobs[np.arange(len(logprobs)), golden.prompts[index][1:]]


def scored(*logprobs, loop=4):
    none = ((),) * len(logprobs)
    scores = LoopScores(
        loop=loop, logprobs=logprobs, best_token_ids=(0,) * len(logprobs), top_logprobs=none
    )
    return Completion(
        request_id="0", sample_index=0, prompt_token_ids=(0,) * (len(logprobs) + 1), token_ids=(),
        exit_depths=(), logprobs=(), top_logprobs=None, finish_reason=FinishReason.LENGTH,
        stop_reason=None, error=None, seed=0, prompt_scores=(scores,), num_cached_tokens=0,
    )  # fmt: skip


def test_perplexity_weighs_every_token_of_a_loop_alike():
    texts = [scored(-1.0), scored(-2.0, -3.0), scored(0.0, loop=1)]
    assert perplexities(texts) == {1: 1.0, 4: pytest.approx(exp(2.0))}
    assert perplexities([scored(-1e4)]) == {4: inf}
    (loop,) = score_to_json(scored(-1e4), None)["prompt_scores"]
    assert loop["perplexity"] is None


def test_texts_are_scored_in_order_after_every_loop(llm, square_golden):
    completions = llm.score(square_golden.prompts[1:], every_loop=True, num_top=2)
    for index, done in enumerate(completions, start=1):
        assert list(done.prompt_token_ids) == square_golden.prompts[index]
        for loop_scores in done.prompt_scores:
            expected = expected_logprobs(square_golden, index, loop_scores.loop)
            np.testing.assert_allclose(loop_scores.logprobs, expected, atol=1e-4)
    everything = [
        np.concatenate([expected_logprobs(square_golden, index, loop) for index in range(1, 6)])
        for loop in (1, 2, 3, 4)
    ]
    expected = [exp(-values.mean()) for values in everything]
    assert list(perplexities(completions)) == [1, 2, 3, 4]
    assert list(perplexities(completions).values()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_the_command_prints_every_token_as_text_and_id(square_golden, texts_file):
    result = looped(
        "score", "--model", square_golden.folder, "--requests", texts_file, *SMALL_FLAGS,
        "--json", "--top", "3", "--every-loop",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["request_id"] for line in lines] == ["0", "1", "2", "3"]
    for index, line in enumerate(lines[:3], start=1):
        assert line["prompt_token_ids"] == square_golden.prompts[index]
        for loop in line["prompt_scores"]:
            expected = expected_logprobs(square_golden, index, loop["loop"])
            np.testing.assert_allclose(loop["logprobs"][1:], expected, atol=1e-4)
            assert loop["perplexity"] == pytest.approx(exp(-expected.mean()), rel=1e-4)
            assert loop["logprobs"][0] is loop["best_tokens"][0] is loop["top_logprobs"][0] is None
    text = lines[3]
    assert "".join(text["prompt_tokens"]) == "what is 1 + 1?"
    scores = text["prompt_scores"][3]
    for place in range(1, len(text["prompt_tokens"])):
        best, best_id, tops = (
            scores[key][place] for key in ("best_tokens", "best_token_ids", "top_logprobs")
        )
        assert [top["logprob"] for top in tops] == sorted(
            (top["logprob"] for top in tops), reverse=True
        )
        assert (tops[0]["token"], tops[0]["token_id"]) == (best, best_id)
        assert len(tops) == 3


@pytest.mark.long
def test_the_command_prints_a_table(square_golden, texts_file):
    result = looped(
        "score",
        "--model",
        square_golden.folder,
        "--requests",
        texts_file,
        *SMALL_FLAGS,
        "--every-loop",
    )
    assert result.returncode == 0, result.stderr
    assert all(f"loop {loop}" in result.stdout for loop in (1, 2, 3, 4))
    rows = [line.replace("│", " ").split() for line in result.stdout.splitlines() if "│" in line]
    first = next(row for row in rows if row[0] == "0")
    for loop, shown in enumerate(first[2:], start=1):
        expected = exp(-expected_logprobs(square_golden, 1, loop).mean())
        assert float(shown) == pytest.approx(expected, rel=1e-3)
    assert any(row[0] == "all" for row in rows)


def test_what_cannot_be_scored_is_refused_before_anything_is(llm):
    with pytest.raises(UsageError, match=r"text 1: expected at least 2 tokens.*got 1"):
        llm.score([[1, 2], [3]])
    assert not llm.engine.has_unfinished_requests()
    with pytest.raises(UsageError, match="prompt_logprobs must be in 0 to 20"):
        llm.score([[1, 2]], num_top=21)


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        (
            {"prompt": "a b", "max_tokens": 3},
            (),
            "line 1: unknown keys max_tokens; known are prompt",
        ),
        (
            {"prompt": "a b", "prompt_token_ids": [1]},
            (),
            "line 1: give either prompt or prompt_token",
        ),
        ({"prompt_token_ids": ["1"]}, (), "line 1: prompt_token_ids must be a list of integers"),
        ({"prompt_token_ids": [1]}, (), "line 1: expected at least 2 tokens"),
        ({"prompt_token_ids": [1, 2]}, ("--top", "3"), "--top is for machines to read; add --json"),
        (
            {"prompt_token_ids": [1, 2]},
            ("--policy", "atomic", "--every-loop"),
            "--every-loop needs launches of one loop, and --policy atomic runs every loop",
        ),
        (
            {"prompt_token_ids": [1, 2]},
            ("--top", "30", "--json"),
            "--top must be in 0 to 20, got 30",
        ),
        ({"prompt_token_ids": [1, 2]}, ("--max-loops", "2"), "--max-loops changes no score"),
        (
            {"prompt_token_ids": [1] * 97},
            (),
            "97 + 0 > 96; shorten the prompt, or raise --max-model-len",
        ),
    ],
)
def test_the_command_says_what_is_wrong(tiny_folder, tmp_path, line, flags, message):
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps(line))
    result = looped(
        "score", "--model", tiny_folder, "--requests", path, *SMALL_FLAGS, *flags, check=False
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_file_is_named(tiny_folder, tmp_path):
    result = looped(
        "score", "--model", tiny_folder, "--requests", tmp_path / "no.jsonl", check=False
    )
    assert result.returncode == 2
    assert "no.jsonl cannot be read" in result.stderr


@pytest.mark.long
def test_generate_prints_samples_in_order_with_scores_of_the_prompt(square_golden, tmp_path):
    path = tmp_path / "requests.jsonl"
    requests = [
        {"prompt_token_ids": square_golden.prompts[2], "n": 3, "prompt_logprobs": 2},
        {"prompt_token_ids": square_golden.prompts[1], "temperature": 0, "n": 1},
    ]
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    result = looped(
        "generate", "--model", square_golden.folder, "--requests", path, *SMALL_FLAGS,
        "--json", "--max-tokens", "4", "--temperature", "1", "--seed", "3", "--n", "2",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    names = [(line["request_id"], line["sample_index"]) for line in lines]
    assert names == [("0", 0), ("0", 1), ("0", 2), ("1", 0)]
    (loop,) = lines[0]["prompt_scores"]
    np.testing.assert_allclose(
        loop["logprobs"][1:], expected_logprobs(square_golden, 2, 4), atol=1e-4
    )
    assert [line["prompt_scores"] for line in lines[1:]] == [[], [], []]


def test_a_text_that_fails_is_left_out_of_the_sum(capsys):
    failed = replace(scored(-9.0), request_id="1", error="it broke")
    print_table([scored(-1.0, -2.0), failed])
    rows = [
        line.replace("│", " ").split()
        for line in capsys.readouterr().out.splitlines()
        if "│" in line
    ]
    assert rows == [["0", "2", "4.4817"], ["1", "error"], ["all", "2", "4.4817"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt_token_ids": [1, 2], "logprobs": 1}, "prompt 0: logprobs is for machines"),
        ({"prompt_token_ids": [1, 2], "prompt_logprobs": 1}, "prompt 0: prompt_logprobs is for"),
        (
            {"prompt_token_ids": [1, 2], "exit_mode": "foo"},
            "exit_mode must be one of ouro, ouro_del",
        ),
        ({"prompt_token_ids": [1], "logit_bias": {"1": 1, "01": 2}}, "one value a token"),
        ({"prompt_token_ids": [1], "logit_bias": {"900": 1}}, "request '0': logit_bias must name"),
        (
            {"prompt_token_ids": [1], "stop_token_ids": [-5]},
            "request '0': stop_token_ids must name",
        ),
        (
            {"prompt_token_ids": [1], "max_tokens": 0, "prompt_logprobs": 1, "stop": "x"},
            "stop must be left out where nothing is generated",
        ),
    ],
)
def test_generate_refuses_what_it_would_ignore(tiny_folder, tmp_path, line, message):
    path = tmp_path / "requests.jsonl"
    path.write_text(json.dumps(line))
    result = looped(
        "generate", "--model", tiny_folder, "--requests", path, *SMALL_FLAGS, check=False
    )
    assert result.returncode == 2
    assert message in result.stderr


def test_generate_refuses_scores_of_every_loop_under_atomic_before_it_loads(tmp_path):
    result = looped(
        "generate", "x", "--model", tmp_path / "nothing", "--policy", "atomic", "--json",
        "--prompt-logprobs", "1", "--prompt-logprobs-every-loop", check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert "--prompt-logprobs-every-loop needs launches of one loop" in result.stderr
