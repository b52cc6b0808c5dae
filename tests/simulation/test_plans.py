"""From options to a workload: contradictions are refused, and results say what was run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulations import COSTS, SMALL, simulated_events

from looped.errors import UsageError
from looped.record.launch_log import write_launch_log
from looped.sched import ExitMode, wavefront_policy
from looped.simulation.inputs import plan_of, seeds_of, warn_of_log
from looped.simulation.options import SimulationOptions, WorkloadOptions
from looped.simulation.runs import scheduler_config, simulate
from looped.simulation.summary import Summary

AT = {"rate": 9.0}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.jsonl"
    write_launch_log(path, simulated_events(), {})
    return path


def planned(**options):
    return plan_of(WorkloadOptions(**options), 4)


def workload_file(tmp_path, *depths):
    path = tmp_path / "load.jsonl"
    one = {"prompt_tokens": 5, "output_tokens": 3}
    lines = [one if own is None else one | {"depths": own} for own in depths]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def trace_file(tmp_path, *depths):
    path = tmp_path / "depths.json"
    path.write_text(json.dumps(depths))
    return path


@pytest.mark.parametrize("mode", [ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD])
def test_made_up_depths_suit_a_mode_that_decides_ahead(mode):
    plan = planned(exit_mode=str(mode), requests=30, **AT)
    assert plan.to_json()["exits"] == "typical, raised to 2 or more"
    workload = plan.workload(0)
    depths = {depth for index in range(30) for depth in workload.depths.depths(index, 64)}
    assert depths == {2, 3, 4}
    assert workload.depths.mean == pytest.approx(2.46 + 0.14)
    assert simulate(workload, scheduler_config(workload, {}), COSTS).launches


@pytest.mark.parametrize("mode", ["ouro_delayed", "lookahead"])
def test_recorded_depths_that_a_mode_cannot_come_to_are_refused_at_once(tmp_path, mode):
    for options in (
        {"exit_trace": trace_file(tmp_path, [4, 1, 2])},
        {"workload": workload_file(tmp_path, None, [4, 1])},
    ):
        with pytest.raises(UsageError, match="decides a loop ahead"):
            planned(exit_mode=mode, **options, **AT)


@pytest.mark.parametrize("mode", ["trace", "ouro", "ouro_delayed", "lookahead"])
@pytest.mark.parametrize("depths", [[1, 9], [4, 9], [4, 0], [3]])
def test_depths_of_a_file_are_those_of_this_model_in_every_mode(tmp_path, mode, depths):
    with pytest.raises(UsageError, match=r"request 0 of the workload: (an )?exit trace"):
        planned(exit_mode=mode, workload=workload_file(tmp_path, depths), **AT)


def test_requests_are_as_long_as_their_recorded_depths(tmp_path, caplog):
    depths = [[4, 1, 2, 3], [4, 2], [4, 1, 1]]
    for requests in (3, 6):
        plan = planned(exit_trace=trace_file(tmp_path, *depths), requests=requests, **AT)
        workload = plan.workload(0)
        timeline = simulate(workload, scheduler_config(workload, {}), COSTS)
        assert Summary.of(timeline).numbers["loops_per_token"] == pytest.approx(22 / 9)
        assert plan.to_json()["output_tokens"] == "of the recorded depths"
    assert not caplog.records


def test_tokens_past_the_end_of_recorded_depths_are_told_of(tmp_path, caplog):
    traces = {"exit_trace": trace_file(tmp_path, [4, 1, 2], [4, 2])}
    plan = planned(**traces, output_tokens="10", requests=2, **AT)
    assert plan.to_json()["output_tokens"] == "10:10"
    (warning,) = caplog.messages
    assert warning.startswith("75 % of the tokens lie past the end of their recorded depths and ")
    assert "all 4 loops; leave out --output-tokens" in warning
    caplog.clear()
    planned(**traces, workload=workload_file(tmp_path, None, [4, 1]), **AT)
    assert not caplog.records
    planned(**traces, workload=workload_file(tmp_path, [4, 1], None), **AT)
    assert caplog.messages[0].startswith("16.7 % of the tokens")
    assert "shorten the requests" in caplog.messages[0]


def test_an_empty_list_of_depths_is_all_loops(tmp_path):
    by_trace = planned(exit_trace=trace_file(tmp_path, [], [4, 1]), **AT).workload(0)
    assert by_trace.depths.depths(0, 3) == (4, 4, 4)
    own = planned(workload=workload_file(tmp_path, [], [4, 1]), **AT).workload(0)
    assert own.facts[2][0] == (4,)
    with pytest.raises(UsageError, match="holds no request, so no depths"):
        planned(exit_trace=trace_file(tmp_path), **AT)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"exit_threshold": 0.4}, "^--exit-threshold needs --exit-gates$"),
        ({"min_loops": 1}, "^--min-loops needs --exit-gates$"),
        ({"workload": "load", "requests": 9}, "--requests means nothing with --workload"),
        ({"workload": "load", "prompt_tokens": "9"}, "--prompt-tokens means nothing"),
        ({"workload": "load", "shared_prefix_tokens": 2}, "--shared-prefix-tokens means nothing"),
        ({"from_log": "log", "shared_prefix_tokens": 2}, "--shared-prefix-tokens means nothing"),
        ({"workload": "load", "exits": "easy"}, "--exits means nothing with requests that all"),
        ({"exit_trace": "trace", "exits": "easy"}, "--exits means nothing with --exit-trace"),
        ({"exit_gates": Path("g"), "heterogeneity": 0.1}, "--heterogeneity means nothing"),
        ({"exits": "full", "autocorrelation": 0.1}, "--autocorrelation means nothing"),
        ({"from_log": "log", "exit_mode": "ouro"}, "--exit-mode means nothing with --from-log"),
        ({"from_log": "log", "exits": "typical"}, "--exits means nothing with --from-log"),
        ({"from_log": "log", "output_tokens": "9"}, "--output-tokens means nothing"),
    ],
)
def test_an_option_that_means_nothing_is_refused(tmp_path, log, options, complaint):
    files = {
        "load": workload_file(tmp_path, [4, 2, 1]),
        "trace": trace_file(tmp_path, [4]),
        "log": log,
    }
    given = {name: files.get(value, value) for name, value in options.items()}
    with pytest.raises(UsageError, match=complaint):
        planned(**given, **AT)


def test_a_log_says_how_its_tokens_left(log):
    told = planned(from_log=log).to_json()
    assert told["exits"] == told["exit_mode"] == "the requests' own"
    assert told["heterogeneity"] is told["autocorrelation"] is None


def test_a_file_says_which_depths_are_made_up(tmp_path):
    told = planned(workload=workload_file(tmp_path, [4, 2], None), **AT).to_json()
    assert told["exits"] == "typical, where a request brings none"
    assert (told["exit_mode"], told["heterogeneity"]) == ("trace", 0.25)
    told = planned(workload=workload_file(tmp_path, [4, 2]), **AT).to_json()
    assert (told["exits"], told["heterogeneity"]) == ("the requests' own", None)


def test_seeds_that_change_nothing_are_not_run(tmp_path, log, caplog):
    loop = {"concurrency": 2}
    copies = [
        planned(from_log=log),
        planned(from_log=log, rate=3.0),
        planned(exits="full", **loop),
        planned(exit_trace=trace_file(tmp_path, [4, 1]), **loop),
        planned(workload=workload_file(tmp_path, [4, 2, 1]), **loop),
    ]
    for plan in copies:
        caplog.clear()
        assert seeds_of(plan, 5) == range(1)
        assert "it runs once instead of 5 times" in caplog.text
    draws = [
        planned(**AT),
        planned(exits="full", **AT),
        planned(exits="full", output_tokens="2:9", **loop),
        planned(**loop),
        planned(workload=workload_file(tmp_path, [4, 2, 1], [4]), **AT),
        planned(workload=workload_file(tmp_path, None), **loop),
    ]
    for plan in draws:
        assert seeds_of(plan, 5) == range(5)


@pytest.mark.parametrize("burstiness", [1e-200, 1e200, 0.0, float("nan")])
def test_a_burstiness_that_cannot_be_drawn_is_refused(burstiness):
    with pytest.raises(UsageError, match="burstiness must be above 0, from"):
        planned(burstiness=burstiness, **AT)


def test_priorities_of_a_file_reach_the_scheduler(tmp_path):
    path = tmp_path / "load.jsonl"
    one = {"prompt_tokens": 9, "output_tokens": 2, "arrival_time": 0}
    path.write_text("\n".join(json.dumps(one | {"priority": value}) for value in (2, 1, 0)))
    workload = planned(workload=path).workload(0)
    config = scheduler_config(workload, {"max_num_seqs": 1, "scheduling_policy": "priority"})
    timeline = simulate(workload, config, replace(COSTS))
    assert [name for name, _ in timeline.ends] == ["2", "1", "0"]


def warned(caplog, plan, *configs, is_deterministic=False, **given):
    caplog.clear()
    built = [scheduler_config(plan.workload(0), one) for one in configs]
    warn_of_log(plan, SimulationOptions(**given), built, is_deterministic=is_deterministic)
    return caplog.messages


def test_what_a_logs_engine_had_otherwise_is_told(log, caplog):
    plan = planned(from_log=log)
    assert warned(caplog, plan, SMALL) == []
    (told,) = warned(caplog, plan, {"policy": "separate"}, is_deterministic=True)
    assert told == (
        "--from-log takes requests alone; the log's engine had policy mixed, here separate; "
        "max_num_seqs 4, here 16; max_num_batched_tokens 64, here 256; prefill_chunk_size 32, "
        "here 128; deterministic False, here True"
    )
    assert warned(caplog, planned(requests=3, **AT), {}) == []


def test_what_one_of_several_has_in_common_with_a_log_is_no_difference(log, caplog):
    plan = planned(from_log=log)
    assert warned(caplog, plan, SMALL, SMALL | {"policy": "atomic", "max_num_seqs": 8}) == []
    budgets = [SMALL | {"max_num_batched_tokens": budget} for budget in (128, 256)]
    (told,) = warned(caplog, plan, *budgets)
    assert told.endswith("the log's engine had max_num_batched_tokens 64, here 128, 256")


def test_a_pool_is_a_difference_where_it_was_asked_for(log, caplog):
    plan = planned(from_log=log)
    assert warned(caplog, plan, SMALL | {"num_blocks": 999}) == []
    (told,) = warned(caplog, plan, SMALL | {"num_blocks": 999}, num_blocks=999)
    assert told.endswith(", here 999")


def test_a_policy_that_a_log_cannot_name_is_told_by_its_name(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    write_launch_log(path, simulated_events(policy=wavefront_policy(2), prefill_chunk_size=8), {})
    (told,) = warned(caplog, planned(from_log=path), SMALL)
    assert "had policy wavefront, here mixed; prefill_chunk_size 8, here 32" in told
