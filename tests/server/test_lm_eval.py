"""lm-evaluation-harness `local-completions`: its numbers are those of the library in process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from live_servers import MODEL

from looped.sampling_params import SamplingParams

PYTHON = os.environ.get("LM_EVAL_PYTHON", sys.executable)
"""An interpreter with lm-evaluation-harness, which has dependencies of its own."""
CLIENT = Path(__file__).parents[1] / "support" / "lm_eval_client.py"
PAIRS = [
    ["the quick brown fox", " jumps over the lazy dog"],
    ["hello", " world"],
    ["hello", " there, how are you?"],
    ["question: 17 + 4?\nanswer:", " 21"],
    ["é \N{GRINNING FACE}", " smile"],
]
TEXTS = [["the quick brown fox jumps over the lazy dog. " * 3], ["hello"]]
GENERATIONS = [
    ["the quick brown fox", {"until": ["\n"], "max_gen_toks": 24}],
    ["hello", {"until": ["e", " t"], "max_gen_toks": 40}],
    ["x", {"until": ["\n"], "max_gen_toks": 10, "temperature": 0}],
]


@pytest.fixture(scope="module")
def results(server, tiny_folder):
    found = subprocess.run([PYTHON, "-c", "import lm_eval, transformers"], capture_output=True)
    if found.returncode:
        pytest.skip(f"{PYTHON} has no lm-eval: pip install 'lm-eval[api]' transformers")
    cases = {
        "loglikelihood": PAIRS,
        "loglikelihood_rolling": TEXTS,
        "generate_until": GENERATIONS,
    }
    done = subprocess.run(
        [PYTHON, CLIENT, server.url + "/v1/completions", MODEL, tiny_folder],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def scored(reference, token_ids, num_context):
    """Log-probability of the tokens after the context, and whether all of them are greedy."""
    (done,) = reference.score([token_ids], show_progress=False)
    (scores,) = done.prompt_scores
    first = num_context - 1  # the first token has no score
    is_greedy = list(scores.best_token_ids[first:]) == list(token_ids[num_context:])
    return sum(scores.logprobs[first:]), is_greedy


@pytest.mark.slow
def test_loglikelihood(results, reference):
    encode = reference.tokenizer.encode
    for (context, continuation), result in zip(PAIRS, results["loglikelihood"], strict=True):
        total, is_greedy = scored(reference, encode(context + continuation), len(encode(context)))
        assert result == [pytest.approx(total, abs=1e-3), is_greedy]


@pytest.mark.slow
def test_loglikelihood_rolling(results, reference):
    for (text,), result in zip(TEXTS, results["loglikelihood_rolling"], strict=True):
        # It puts the end of sequence before the text, so that the first token has a score.
        total, _ = scored(reference, [0, *reference.tokenizer.encode(text)], 1)
        assert result == pytest.approx(total, abs=1e-3)


@pytest.mark.slow
def test_generate_until(results, reference):
    for (context, options), result in zip(GENERATIONS, results["generate_until"], strict=True):
        params = SamplingParams(max_tokens=options["max_gen_toks"], stop=options["until"])
        (done,) = reference.generate([context], params, show_progress=False)
        assert result == done.text


def test_an_echoed_prompts_log_probabilities_are_those_of_score(live, reference):
    """The same without the harness, always run."""
    ids = reference.tokenizer.encode(" ".join(PAIRS[0]))
    body = {"max_tokens": 1, "logprobs": 3, "echo": True, "temperature": 0, "seed": 1234}
    (done,) = reference.score([ids], num_top=3, show_progress=False)
    (scores,) = done.prompt_scores
    answer = live.complete([ids, ids[:7]], **body)
    for choice, num_tokens in zip(answer["choices"], (len(ids), 7), strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["token_logprobs"]) == num_tokens + 1
        assert logprobs["token_logprobs"][1:-1] == pytest.approx(
            scores.logprobs[: num_tokens - 1], abs=1e-4
        )
        assert scores.top_logprobs is not None
        for listed, expected in zip(
            logprobs["top_logprobs"][1:-1], scores.top_logprobs, strict=False
        ):
            assert max(listed.values()) == pytest.approx(expected[0][1], abs=1e-4)
    # The generated token's own is the largest of its list, bit for bit: that is how the harness
    # tells greedy tokens.
    assert logprobs["token_logprobs"][-1] == max(logprobs["top_logprobs"][-1].values())
