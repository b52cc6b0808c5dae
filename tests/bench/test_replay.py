"""One list under three policies: the same options for all, and each rule trips when broken."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from command_line import looped

from looped.bench.replay.benchmark import REPLAYED, Replay, judge_arms
from looped.bench.replay.report import replay_page
from looped.bench.serve.load_run import LoadRun
from looped.bench.serve.load_summary import Judgement
from looped.bench.serve.served_request import Failure, Objective, ServedRequest
from looped.bench.serve.serving_process import ADDRESS, engine_options, serving
from looped.engine.options import EngineConfig
from looped.errors import LoopedError, UsageError
from looped.measure.arrivals import Prompt, poisson_arrivals
from looped.models import read_config

JUDGEMENT = Judgement(objective=Objective(ttft=1.0))


def plan(**options):
    return Replay(
        model=Path("model"),
        dtype=None,
        engine=EngineConfig(**options),
        arrivals=poisson_arrivals([Prompt((1, 2, 3), 4)] * 9, 2.0, seed=0),
        rate=2.0,
        timeout=60.0,
        start_timeout=60.0,
    )


def served(index, **changes):
    request = ServedRequest(
        index=index,
        arrival=float(index),
        sent=float(index),
        ended=index + 0.8,
        chunk_times=(index + 0.5, index + 0.6),
        prompt_tokens=3,
        output_tokens=2,
        usage={"prompt_tokens": 3, "completion_tokens": 2},
    )
    return replace(request, **changes)


def arm(name, *, num_mixed, exit_code=0, compilations=0, **first):
    requests = [served(0, **first), *map(served, range(1, 20))]
    counted = {"mixed_launches": num_mixed, "compilations": compilations}
    return LoadRun(name=name, rate=1.0, requests=requests, counted=counted), exit_code


def broken(**arms):
    played = {
        "A0": arm("A0", num_mixed=0),
        "A1": arm("A1", num_mixed=0),
        "A2": arm("A2", num_mixed=7),
    }
    return judge_arms(played | arms, JUDGEMENT)


def test_a_replay_that_keeps_the_rules_is_valid_and_told_side_by_side():
    result = broken()
    assert result.is_valid
    page = "\n".join(replay_page({"model": "m"}, result))
    assert "| | A0 atomic | A1 separate | A2 mixed |" in page
    assert "| mixed launches | 0 | 0 | 7 |" in page
    assert "| ITL p50 | 1.00 | 1.00 | 1.00 |" in page
    assert "INVALID" not in page


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ({"A0": arm("A0", num_mixed=1)}, "launches_are_the_arms, A0: expected no mixed"),
        ({"A1": arm("A1", num_mixed=2)}, "launches_are_the_arms, A1: expected no mixed"),
        ({"A2": arm("A2", num_mixed=0)}, "launches_are_the_arms, A2: expected mixed launches, got"),
        ({"A1": arm("A1", num_mixed=0, compilations=3)}, "no_compilation, A1: .*got 3"),
        ({"A1": arm("A1", num_mixed=0, exit_code=1)}, "server_ends_well, A1: .*got 1"),
        ({"A0": arm("A0", num_mixed=0, sent=0.2)}, "client_in_time, A0"),
        ({"A2": arm("A2", num_mixed=7, output_tokens=1)}, r"same_tokens, all: .*A0 and A2, but 1"),
        (
            {"A0": arm("A0", num_mixed=0, failure=Failure.TIMEOUT, detail="late")},
            "all_requests_complete, A0: .*request 0: timeout: late",
        ),
    ],
)
def test_each_rule_trips_on_an_arm_that_breaks_it(arms, said):
    result = broken(**arms)
    assert len(result.violations) == 1
    assert re.match(said, str(result.violations[0]))
    assert "**INVALID**" in "\n".join(replay_page({}, result))


def test_a_server_that_does_not_count_mixed_launches_is_no_arm():
    run, exit_code = arm("A0", num_mixed=0)
    for counted in ({}, {"launches": 7}):
        result = broken(A0=(replace(run, counted=counted), exit_code))
        (violation,) = result.violations
        assert "launches_are_the_arms, A0: expected a count of mixed launches" in str(violation)


def test_arms_that_are_over_are_told_before_the_others_are():
    result = judge_arms({"A0": arm("A0", num_mixed=0)}, JUDGEMENT)
    assert not result.to_json({})["is_complete"]
    assert "Ratios" not in "\n".join(replay_page({}, result))
    result = judge_arms({name: arm(name, num_mixed=0) for name in ("A0", "A1")}, JUDGEMENT)
    page = "\n".join(replay_page({}, result))
    assert "| | A1/A0 |" in page
    assert not result.is_complete


def test_a_replay_says_what_was_asked_of_it():
    values = broken().to_json({"rate": 2.0, "seed": 3})
    assert values["is_complete"]
    assert values["judgement"]["objective"] == {"ttft": 1.0, "itl": None}
    assert (values["rate"], values["seed"]) == (2.0, 3)


def test_arms_differ_in_their_policy_alone():
    replay = plan(max_num_seqs=4, prefix_caching=False)
    options = {arm: replay.options_of(arm) for arm in REPLAYED}
    assert [options[arm][1] for arm in REPLAYED] == ["atomic", "separate", "mixed"]
    assert options["A0"][0] == "--policy"
    assert options["A0"][2:] == options["A1"][2:] == options["A2"][2:]
    assert options["A0"][2:] == [
        "--max-num-seqs", "4", "--no-prefix-caching",
        "--max-concurrent-requests", "10", "--request-timeout", "60.0",
    ]  # fmt: skip


def test_an_option_of_one_policy_is_given_to_that_one_alone():
    replay = plan(prompt_shortcut=False, max_prefill_batches_before_decode=2)
    assert "--no-prompt-shortcut" in replay.options_of("A2")
    assert "--max-prefill-batches-before-decode" not in replay.options_of("A2")
    for arm in ("A0", "A1"):
        assert "--no-prompt-shortcut" not in replay.options_of(arm)
        assert "--max-prefill-batches-before-decode" in replay.options_of(arm)


def test_what_one_arm_cannot_work_with_is_refused_before_any_is_played(tiny_folder):
    model = read_config(tiny_folder / "config.json")
    plan().check(model)
    with pytest.raises(UsageError, match=r"A2: prefill_chunk_size \+ max_num_seqs - 1"):
        plan(prefill_chunk_size=32, max_num_batched_tokens=32).check(model)
    with pytest.raises(UsageError, match="has 7 tokens, and --max-model-len is 6"):
        plan(max_model_len=6).check(model)
    policy_options = {"policy_options": (("window", "2"),)}
    for options in ({"policy": "mixed"}, {"mixed_prefill_decode": True}, policy_options):
        with pytest.raises(UsageError, match="a replay plays every policy"):
            plan(**options)


def test_only_options_that_were_given_are_passed_on():
    assert engine_options(EngineConfig()) == []
    options = (("window", "2"), ("other", "a=b"))
    assert engine_options(EngineConfig(policy="wavefront", policy_options=options)) == [
        "--policy", "wavefront", "--policy-option", "window=2", "--policy-option", "other=a=b",
    ]  # fmt: skip
    config = EngineConfig(exit_threshold=0.5, incremental_kv=True, exit_mode="ouro")
    assert engine_options(config) == [
        "--incremental-kv", "--exit-mode", "ouro", "--exit-threshold", "0.5",
    ]  # fmt: skip


def test_a_server_that_does_not_start_says_why(tmp_path):
    with (
        pytest.raises(LoopedError, match=r"ended with exit code 2: .*--nonsense"),
        serving(tmp_path, ["--nonsense"], log=tmp_path / "log", start_timeout=60),
    ):
        pass


@pytest.mark.slow
def test_a_real_replay_is_valid(tiny_folder, tmp_path):
    file, out = tmp_path / "dataset.json", tmp_path / "results"
    file.write_text(
        json.dumps(
            [
                {
                    "id": i,
                    "conversations": [
                        {"from": "human", "value": f"{i}: the quick brown fox " * (2 + i % 5)},
                        {"from": "gpt", "value": "jumps over the lazy dog " * (1 + i % 3)},
                    ],
                }
                for i in range(40)
            ]
        )
    )
    done = looped(
        "bench", "replay", "--model", tiny_folder, "--out", out, "--dataset", file,
        "--rate", 40, "--num-requests", 30, "--max-lag", 10, "--no-plots",
        "--max-num-seqs", 8, "--max-num-batched-tokens", 32, "--prefill-chunk-size", 16,
        "--max-model-len", 256, "--profile", tmp_path / "profile",
    )  # fmt: skip
    assert done.stdout == (out / "result.md").read_text()
    result = json.loads((out / "result.json").read_text())
    assert result["is_valid"]
    assert result["is_complete"]
    assert (result["benchmark"], result["rate"], result["seed"]) == ("replay", 40, 0)
    assert result["devices"]
    assert all(arm["is_queue_counted"] for arm in result["arms"].values())
    assert {
        trace.relative_to(tmp_path / "profile").parts[0]
        for trace in (tmp_path / "profile").rglob("*.xplane.pb")
    } == set(REPLAYED)
    counted = {name: summary["counted"] for name, summary in result["arms"].items()}
    assert counted["A0"]["mixed_launches"] == counted["A1"]["mixed_launches"] == 0
    assert counted["A2"]["mixed_launches"] > 0
    for name in ("prompt_tokens", "output_tokens"):
        assert len({counts[name] for counts in counted.values()}) == 1
    assert {summary["num_requests"] for summary in result["arms"].values()} == {30}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replay_that_is_ended_leaves_no_server_behind(tiny_folder, tmp_path, number):
    log = tmp_path / "results" / "A0-server.log"
    command = [sys.executable, "-P", "-m", "looped", "bench", "replay", "--model", tiny_folder]
    options = ["--out", log.parent, "--no-plots", "--max-model-len", 512]
    with subprocess.Popen([*map(str, [*command, *options])], stderr=subprocess.PIPE) as process:
        found = None
        deadline = time.monotonic() + 60
        while found is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            found = ADDRESS.search(log.read_text()) if log.exists() else None
        assert httpx.get(found[0] + "/health").status_code in (200, 503)
        process.send_signal(number)
        assert process.wait(30) != 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(found[0] + "/health")
