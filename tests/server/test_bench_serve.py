"""`looped bench serve` against a live server: what it reports is what the server did."""

import json

import pytest
from command_line import looped
from live_servers import MODEL

LOAD = (
    "--rate", 40, "--num-requests", 24, "--prompt-tokens", 20, "--output-tokens", 6,
    "--max-lag", 10, "--slo-ttft", 30, "--slo-itl", 30,
)  # fmt: skip


def bench(live, *options, **kwargs):
    return looped("--quiet", "bench", "serve", "--url", live.url, *options, **kwargs)


def test_a_load_is_served_to_the_token_and_told_in_full(live, tmp_path):
    out = tmp_path / "results"
    done = bench(live, *LOAD, "--rate", 80, "--out", out)
    assert done.stdout == (out / "result.md").read_text()
    assert {path.name for path in out.iterdir()} == {
        "result.json", "result.md", "run0.jsonl", "run1.jsonl", "itl.png", "ttft.png",
    }  # fmt: skip
    result = json.loads((out / "result.json").read_text())
    assert result["model"] == MODEL
    assert result["is_valid"]
    assert [run["rate"] for run in result["runs"]] == [40, 80]
    for run in result["runs"]:
        assert run["failures"] == {}
        assert run["num_requests"] == run["ttft"]["count"] == run["tpot"]["count"] == 24
        assert run["itl"]["count"] == 24 * 5  # a chunk for every token
        assert run["tokens_per_chunk"] == 1.0
        assert run["attainment"] == 1.0
        assert run["counted"]["output_tokens"] == 24 * 6
        assert run["counted"]["prompt_tokens"] == 24 * 20
        assert run["counted"]["cached_prompt_tokens"] == 0  # no run finds another's prompts
        assert run["counted"]["mixed_launches"] > 0
        assert run["counted"]["compilations"] == 0
        log = [json.loads(line) for line in (out / f"{run['name']}.jsonl").read_text().splitlines()]
        assert [one["usage"]["completion_loops"] for one in log] == [24] * 24


def test_a_dataset_gives_prompts_and_lengths(live, tiny_folder, tmp_path):
    file = tmp_path / "dataset.json"
    turns = [
        {"from": "human", "value": "the quick brown fox jumps over the lazy dog"},
        {"from": "gpt", "value": "so it does"},
    ]
    file.write_text(json.dumps([{"id": i, "conversations": turns} for i in range(3)] + [
        {"id": "short", "conversations": [{"from": "human", "value": "x"}, turns[1]]}
    ]))  # fmt: skip
    options = ("--dataset", file, "--tokenizer", tiny_folder, "--rate", 40, "--max-lag", 10)
    done = bench(live, *options, "--num-requests", 9, "--json")
    result = json.loads(done.stdout)
    (run,) = result["runs"]
    tokenizer = live.llm.tokenizer
    assert run["num_requests"] == 3
    assert run["failures"] == {}
    assert run["counted"]["prompt_tokens"] == 3 * len(tokenizer.encode(turns[0]["value"]))
    assert run["counted"]["output_tokens"] == 3 * len(tokenizer.encode(turns[1]["value"]))
    assert result["dropped"] == {"run0": {"too short": 1}}


def test_a_server_that_refuses_is_told_before_the_run(live):
    done = bench(live, "--prompt-tokens", 300, check=False)
    assert done.returncode == 1
    assert "the first request failed: refused: 400" in done.stderr
    assert "max_model_len" in done.stderr or "context" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", 0), "--rate must be above 0"),
        (("--find-capacity",), "for --slo-ttft SECONDS"),
        (("--find-capacity", "--slo-ttft", 1, "--precision", 1), "precision above 1"),
        (("--slo-share", 2), "a share above 0 and at most 1"),
        (("--dataset", "none.json", "--tokenizer", "nowhere"), "--tokenizer DIR"),
    ],
)
def test_options_that_cannot_be_are_one_line_and_exit_code_2(live, options, said):
    done = bench(live, *options, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_no_server_is_one_line_and_exit_code_1():
    done = looped("bench", "serve", "--url", "http://127.0.0.1:9", check=False)
    assert done.returncode == 1
    assert "http://127.0.0.1:9/v1/models does not answer" in done.stderr


@pytest.mark.slow
def test_a_capacity_is_found_between_what_is_sustained_and_what_is_not(live):
    options = ("--find-capacity", "--precision", 1.5, "--json", "--max-lag", 10)
    done = bench(live, *options, *LOAD[:-4], "--slo-ttft", 0.5)
    result = json.loads(done.stdout)
    sustained = {run["rate"]: run["is_sustained"] for run in result["runs"]}
    assert sustained[result["capacity"]["rate"]]
    assert not sustained[result["capacity"]["failed_rate"]]
