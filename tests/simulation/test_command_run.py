"""`looped simulate run`, as it is typed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from command_line import looped
from plug_ins import install_plug_in
from simulations import COSTS, simulated_events

from looped.record.gate_record import GateRecord, write_gate_record
from looped.record.launch_log import read_launch_log, write_launch_log
from looped.record.timeline import Timeline
from looped.sched.policies import registry

BAD_POLICIES = """
    from dataclasses import replace

    from looped.sched import Selection, policy_named

    def take(view, stage):
        return Selection(view.prompt_items[:0])

    def fails(view, stage):
        raise RuntimeError("a bug of its own")

    IDLE = replace(policy_named("mixed"), name="idle", take=take)
    BROKEN = replace(policy_named("mixed"), name="broken", take=fails)
"""
SIZES = ("--requests", 8, "--prompt-tokens", "5:40", "--output-tokens", "2:9")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS.to_json()))
    return path


def run(table, *arguments, **options):
    return looped("simulate", "run", "--costs", table, *arguments, **options)


def numbers(table, *arguments):
    return json.loads(run(table, *SIZES, *arguments, "--json").stdout)["numbers"]


def test_a_page_has_every_number(table):
    page = run(table, *SIZES, "--rate", 20).stdout
    for row in ("makespan, ms", "ttft p50, ms", "itl p99, ms", "prompt token loops per second"):
        assert f"| {row}" in page
    assert "estimate" not in page.lower()


def test_an_estimate_is_called_one_in_every_form(table, tmp_path):
    shipped = "ouro-1.4b-h200"
    page = run(shipped, *SIZES, "--rate", 20).stdout
    assert "**ESTIMATE**" in page
    values = json.loads(run(shipped, *SIZES, "--rate", 20, "--json").stdout)
    assert values["costs"]["is_estimate"]
    path = tmp_path / "run.jsonl"
    run(shipped, *SIZES, "--rate", 20, "--launch-log", path)
    assert "estimate" in read_launch_log(path).meta["kind"]


def test_the_log_of_a_run_can_be_simulated_again(table, tmp_path):
    path = tmp_path / "run.jsonl.gz"
    first = numbers(table, "--rate", 30, "--launch-log", path)
    timeline = Timeline(read_launch_log(path).events)
    assert len(timeline.launches) == first["launches"]
    again = json.loads(run(table, "--from-log", path, "--json").stdout)["numbers"]
    assert again == pytest.approx(first, nan_ok=True)


def first_positions(path):
    """Where each prompt began to be computed: behind what the prefix cache held of it."""
    firsts = {}
    for launch in Timeline(read_launch_log(path).events).launches:
        for item in launch.record.items:
            firsts.setdefault(item.request_id, item.first_position)
    return firsts


def test_a_shared_prefix_is_computed_once_and_first_tokens_come_sooner(table, tmp_path):
    sizes = ("--requests", 12, "--prompt-tokens", "70:90", "--output-tokens", "2:5", "--rate", 5)
    share = ("--shared-prefix-tokens", 69)
    runs = {
        "alone": (),
        "shared": share,
        "off": (*share, "--no-prefix-caching"),
        "larger blocks": (*share, "--block-size", 32),
    }
    numbers, firsts, requests = {}, {}, {}
    for name, options in runs.items():
        path = tmp_path / f"{name}.jsonl"
        done = run(table, *sizes, *options, "--launch-log", path, "--json")
        numbers[name] = json.loads(done.stdout)["numbers"]
        firsts[name] = first_positions(path)
        requests[name] = [
            (event.time, event.num_prompt_tokens, event.max_tokens, event.exit_rule)
            for event in Timeline(read_launch_log(path).events).requests.values()
        ]
    assert requests["alone"] == requests["shared"] == requests["off"]  # common random numbers
    assert numbers["alone"] == numbers["off"]
    assert set(firsts["off"].values()) == {0}
    assert set(firsts["shared"].values()) == {0, 64}
    assert set(firsts["larger blocks"].values()) == {0, 64}
    for name in ("ttft_p50", "prompt_token_loops_per_second"):
        assert numbers["shared"][name] < numbers["off"][name]


def test_prompts_of_a_log_share_what_they_shared(table, tmp_path):
    logs = [tmp_path / "first.jsonl", tmp_path / "again.jsonl"]
    load = ("--requests", 12, "--prompt-tokens", "40:90", "--output-tokens", "2:5", "--rate", 9)
    run(table, *load, "--shared-prefix-tokens", 39, "--launch-log", logs[0])
    run(table, "--from-log", logs[0], "--launch-log", logs[1])
    assert first_positions(logs[0]) == first_positions(logs[1])
    assert set(first_positions(logs[1]).values()) == {0, 32}
    for block_size, shared in ((8, 32), (32, 32), (5, 30)):
        path = tmp_path / f"{block_size}.jsonl"
        run(table, "--from-log", logs[0], "--block-size", block_size, "--launch-log", path)
        assert set(first_positions(path).values()) == {0, shared}


def test_a_deterministic_run_says_so_in_its_log(table, tmp_path):
    path = tmp_path / "run.jsonl"
    values = json.loads(
        run(table, *SIZES, "--rate", 20, "--policy", "atomic", "--deterministic",
            "--launch-log", path, "--json").stdout
    )  # fmt: skip
    assert values["deterministic"]
    events = read_launch_log(path).events
    assert events[0].is_deterministic
    records = [launch.record for launch in Timeline(events).launches]
    assert {record.num_calls for record in records} == {1, 4}
    assert len({record.bucket for record in records}) == 1
    assert len({record.head.bucket for record in records if record.head is not None}) == 1


def test_options_of_scheduler_and_policy_reach_the_run(table):
    few = numbers(table, "--rate", 50, "--max-num-seqs", 2)
    many = numbers(table, "--rate", 50)
    assert few["rows_per_pass"] < many["rows_per_pass"]
    assert numbers(table, "--rate", 50, "--policy", "separate")["launches"] > many["launches"]
    slack = f"slack:target=0.02,costs={table}"
    assert numbers(table, "--rate", 50, "--policy", slack)["itl_max"] > 0


def test_a_closed_loop_has_no_rate(table):
    loop = numbers(table, "--concurrency", 2, "--exits", "full")
    assert loop["loops_per_token"] == 4
    assert loop["rows_per_pass"] > 1


def test_recorded_depths_and_gates_decide(table, tmp_path):
    trace = tmp_path / "depths.json"
    trace.write_text(json.dumps([[4, 1, 1, 1, 1, 1, 1, 1, 1]]))
    loops = numbers(table, "--rate", 9, "--exit-trace", trace)["loops_per_token"]
    probabilities = np.full((9, 4), 0.6, np.float16)
    probabilities[0] = np.nan
    gates = tmp_path / "gates.npz"
    write_gate_record(gates, GateRecord(probabilities, np.array([0, 9]), {"schema": 1}))
    same = numbers(table, "--rate", 9, "--exit-gates", gates, "--min-loops", 1)
    assert same["loops_per_token"] == loops < 2
    more = numbers(table, "--rate", 9, "--exit-gates", gates, "--exit-threshold", 0.9)
    assert more["loops_per_token"] > 3


def test_pictures_are_drawn_where_none_are(table, tmp_path):
    run(table, *SIZES, "--rate", 20, "--plots", tmp_path / "pictures")
    assert len(list((tmp_path / "pictures").glob("simulation-*.png"))) == 3
    done = run(table, *SIZES, "--rate", 20, "--plots", tmp_path / "pictures", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "exists; choose another place" in done.stderr


def test_a_place_of_a_log_that_will_not_do_leaves_no_folder_of_pictures(table, tmp_path):
    places = ("--plots", tmp_path / "p", "--launch-log", tmp_path / "none" / "run.jsonl")
    done = run(table, *SIZES, "--rate", 20, *places, check=False)
    assert (done.returncode, "is not a folder" in done.stderr) == (2, True)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "expected a rate, or a concurrency"),
        (("--rate", 1, "--exits", "never"), "exits must be full, easy"),
        (("--rate", 1, "--prompt-tokens", "9:1"), "a range of lengths"),
        (("--rate", 1, "--prompt-tokens", 10**13), "at most 10,000,000 tokens of a request"),
        (("--rate", 1, "--prompt-tokens", 10**7 - 64), "at most 1,000,000,000 tokens of all"),
        (("--rate", 1, "--requests", 10**13), "expected 1 to 1,000,000 requests"),
        (("--rate", 1e-300), "expected a rate above 0, from 1e-06 to 1e+09 requests per second"),
        (("--rate", "inf"), "expected a rate above 0"),
        (("--rate", "nan"), "expected a rate above 0"),
        (("--rate", 1, "--num-blocks", 10**13), "at most 50,000,000 KV blocks"),
        (("--rate", 1, "--max-num-seqs", 10**9), "fewer --max-num-seqs"),
        (("--rate", 1, "--policy", "nothing"), "nothing"),
        (("--rate", 1, "--policy", "mixed:depth"), "NAME:KEY=VALUE"),
        (("--rate", 1, "--policy", "wavefront:"), "NAME:KEY=VALUE"),
        (("--rate", 1, "--policy", "wavefront:window=2,"), "NAME:KEY=VALUE"),
        (("--rate", 1, "--policy", "slack"), "--policy slack:target=VALUE,costs=VALUE"),
        (
            ("--rate", 1, "--policy", "mixed", "--policy", "separate"),
            "got 2: mixed, separate; `looped simulate compare` takes several",
        ),
        (("--rate", 1, "--policy", "slack:target=1,5"), "no value with a comma in it"),
        (("--rate", 1, "--launch-log-waits"), "add --launch-log FILE"),
        (("--rate", 1, "--burstiness", "1e200"), "burstiness must be above 0"),
        (
            ("--rate", 1, "--max-num-seqs", 999, "--max-num-batched-tokens", 256),
            "max_num_seqs",
        ),
        (("--rate", 1, "--workload", "none.jsonl"), "none.jsonl cannot be read"),
        (("--rate", 1, "--exit-trace", "none.json"), "none.json cannot be read"),
    ],
)
def test_a_mistake_is_one_line(table, arguments, complaint):
    done = run(table, *arguments, check=False)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def bad_policies(monkeypatch, tmp_path):
    install_plug_in(monkeypatch, tmp_path, "bad", BAD_POLICIES, idle="IDLE", broken="BROKEN")
    yield
    monkeypatch.undo()
    registry.installed.cache_clear()


@pytest.mark.usefixtures("bad_policies")
def test_a_policy_that_breaks_the_protocol_is_one_line_and_one_that_fails_is_not(table):
    for command in ("run", "compare"):
        alone = ("--policy", "mixed") if command == "compare" else ()
        load = ("--costs", table, *SIZES, "--rate", 9, *alone)
        done = looped("simulate", command, *load, "--policy", "idle", check=False)
        assert (done.returncode, done.stdout) == (1, "")
        told = done.stderr.splitlines()[-1]
        assert told.startswith("looped: error: expected from policy idle: a launch")
        assert "Traceback" not in done.stderr
        with pytest.raises(RuntimeError, match="a bug of its own"):
            looped("simulate", command, *load, "--policy", "broken")


def test_a_log_without_requests_is_a_mistake(table, tmp_path):
    path = tmp_path / "run.jsonl"
    write_launch_log(path, simulated_events()[:1], {})
    done = run(table, "--from-log", path, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "holds no request" in done.stderr


def test_a_mode_that_decides_ahead_runs_and_is_logged(table, tmp_path):
    path = tmp_path / "run.jsonl"
    run(table, *SIZES, "--rate", 9, "--exit-mode", "lookahead", "--launch-log", path)
    assert path.exists()


def test_costs_of_nothing_give_no_rates(tmp_path):
    path = tmp_path / "zero.json"
    free = {name: 0.0 for name, value in COSTS.to_json().items() if isinstance(value, float)}
    path.write_text(json.dumps(COSTS.to_json() | free))
    done = run(path, *SIZES, "--concurrency", 8, "--json")
    assert json.loads(done.stdout)["numbers"]["requests_per_second"] is None


def test_a_table_that_is_none_is_a_mistake():
    done = run("nothing", "--rate", 1, check=False)
    assert done.returncode == 2
    assert "ouro-1.4b-h200" in done.stderr


def test_a_table_of_another_model_goes_with_families_for_any(tmp_path):
    path = tmp_path / "two.json"
    path.write_text(json.dumps(replace(COSTS, num_planes=2).to_json()))
    done = run(path, *SIZES, "--rate", 5, check=False)
    assert "exits typical are for 4 loops, got a model of 2; try mean:X" in done.stderr
    assert run(path, *SIZES, "--rate", 5, "--exits", "mean:1.4").returncode == 0
