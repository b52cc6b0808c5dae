"""`looped bench serve` against a live server: what it reports is what the server did."""

import json

import pytest
from command_line import looped
from live_servers import MODEL

pytestmark = pytest.mark.long

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
        "benchmark.json", "result.json", "result.md", "run0.jsonl", "run1.jsonl", "itl.png",
        "ttft.png",
    }  # fmt: skip
    result = json.loads((out / "result.json").read_text())
    assert result["model"] == MODEL
    assert result["is_valid"]
    assert result["is_complete"]
    assert result["benchmark"] == "serve"
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
        assert run["is_queue_counted"]
        assert 0 <= run["queue_p50"] <= run["ttft"]["p50"] + 0.01  # within a bucket
        assert run["lateness"]["count"] > 1
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


def test_a_second_command_finds_nothing_of_the_first_in_the_prefix_cache(live):
    options = ("--rate", 40, "--num-requests", 4, "--prompt-tokens", 48, "--output-tokens", 2)
    values = [
        json.loads(bench(live, *options, "--max-lag", 10, "--json", *more).stdout)
        for more in ((), (), ("--prompt-seed", 7), ("--prompt-seed", 7))
    ]
    cached = [value["runs"][0]["counted"]["cached_prompt_tokens"] for value in values]
    assert cached[:3] == [0, 0, 0]
    assert cached[3] > 0, "the same seed makes the same prompts"
    assert values[0]["prompt_seed"] != values[1]["prompt_seed"]
    assert [value["prompt_seed"] for value in values[2:]] == [7, 7]
    assert len({value["runs"][0]["arrived_rate"] for value in values}) == 1


def test_a_server_that_refuses_is_told_before_the_run(live, tmp_path):
    out = tmp_path / "results"
    options = ("--vocab-size", 10**6, "--prompt-tokens", 20, "--output-tokens", 6)
    done = bench(live, *options, "--out", out, "--no-plots", check=False)
    assert done.returncode == 1
    assert "the first request failed: refused: 400" in done.stderr
    assert {path.name for path in out.iterdir()} == {"benchmark.json"}  # nothing was measured


def test_a_late_client_makes_the_command_fail(live, tmp_path):
    out = tmp_path / "results"
    late = ("--max-lag", 1e-6, "--no-plots")
    done = bench(live, *LOAD, *late, "--out", out, check=False)
    assert done.returncode == 1
    assert "the benchmark is invalid" in done.stderr
    assert "client_in_time, run0" in done.stdout
    assert json.loads((out / "result.json").read_text())["is_valid"] is False
    # Of a search, too, whose answer then rests on nothing; half the rate would take too long.
    options = ("--find-capacity", "--longest-run", 1, "--json")
    done = bench(live, *LOAD, *late, *options, check=False)
    result = json.loads(done.stdout)
    assert done.returncode == 1
    assert len(result["runs"]) == 1
    assert not result["is_valid"]
    assert result["capacity"]["rate"] is None
    assert result["capacity"]["is_limited_by_client"]


def test_the_machine_is_described_before_it_is_loaded(live, monkeypatch):
    moments = []
    monkeypatch.setattr(
        "looped.measure.machine.describe_host", lambda: moments.append("described") or {}
    )
    monkeypatch.setattr(
        "looped.bench.serve.endpoint.Endpoint.card",
        lambda self: moments.append("asked") or {"id": MODEL, "max_model_len": 1},
    )
    done = bench(live, "--vocab-size", 9, check=False)
    assert done.returncode == 2
    assert "have 256 + 128 tokens, and the server takes 1 (max_model_len)" in done.stderr
    assert moments == ["described", "asked"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--rate", 0), "--rate must be above 0"),
        (("--find-capacity",), "for --slo-ttft SECONDS"),
        (("--find-capacity", "--slo-ttft", 1, "--precision", 1), "precision above 1"),
        (("--find-capacity", "--slo-ttft", 1, "--num-requests", 15), "at least 16 requests"),
        (("--find-capacity", "--slo-ttft", 1, "--longest-run", 9), "or raise --longest-run 9"),
        (("--slo-share", 2), "a share above 0 and at most 1"),
        (("--max-queue", 0), "a lag and a queue above 0"),
        (("--url", "http://host:notaport"), "is no URL"),
        (("--prompt-tokens", 300), "have 300 + 128 tokens, and the server takes 256"),
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
