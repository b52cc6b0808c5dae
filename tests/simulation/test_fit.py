"""Fits find the costs that a log was made with."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from engines import drain_samples, logged_engine
from simulations import COSTS, PLAN, SMALL

from looped.engine.events import EngineEvent, LaunchEvent
from looped.errors import LoopedError
from looped.programs.sampling import forms as forms_module
from looped.record.launch_log import LaunchLog
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, LaunchKind, RowStatus
from looped.simulation.fitting.fit import fit_costs
from looped.simulation.fitting.samples import CONDITIONAL, head_of, samples_of, work_of
from looped.simulation.runs import scheduler_config, simulate
from looped.simulation.summary import Summary

PLAN = replace(PLAN, num_requests=60)
TRUTH = replace(
    COSTS,
    decode_key_seconds=2e-6,
    prompt_key_seconds=4e-7,
    overheads={
        LaunchKind.RECURRENT: {2: 0.0, 8: 2e-4, 32: 5e-4, 64: 1e-3},
        LaunchKind.HEAD: {2: 0.0, 4: 3e-4},
    },
    host_launch_seconds=3e-4,
    host_item_seconds=2e-5,
    host_row_seconds=1e-6,
    host_call_seconds=1e-4,
    host_call_row_seconds=2e-7,
)


def log_of(
    *,
    waits=True,
    noise=0.0,
    policy="mixed",
    costs=TRUTH,
    plan=PLAN,
    change=None,
    is_deterministic=False,
    run_ahead=None,
):
    """A log of a simulated run, its device times shaken."""
    events = []
    workload = plan.workload(0)
    config = scheduler_config(workload, SMALL | {"policy": policy, "run_ahead": run_ahead})
    simulate(
        workload,
        config,
        costs,
        sink=events.append,
        waits_for_device=waits,
        is_deterministic=is_deterministic,
    )
    random = Random(0)
    for index, event in enumerate(events):
        if isinstance(event, LaunchEvent):
            if noise:
                longer = event.started + (event.ended - event.started) * random.gauss(1, noise)
                event = replace(event, ended=longer)
            events[index] = event if change is None else change(event)
    return LaunchLog(Path("made-up.jsonl"), {"waits_for_device": waits}, tuple(events))


def fitted(log):
    return fit_costs(log, name="again", source="a test")


def check_launches(costs, log, tolerance, truth=TRUTH):
    """The model says of every launch of a log what the truth says."""
    records = [event.record for event in log.events if isinstance(event, LaunchEvent)]
    works = set(map(work_of, records))
    heads = set(map(head_of, records)) - {None}
    assert len(works) > 50
    assert len(heads) > 3
    for work in works | heads:
        assert costs.seconds(work) == pytest.approx(truth.seconds(work), rel=tolerance)


@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic"])
def test_a_log_without_noise_is_met_exactly(policy):
    log = log_of(policy=policy)
    fit = fitted(log)
    # Launches of several passes differ in their number, and the overhead is fitted per pass.
    check_launches(fit.costs, log, 2e-3)
    assert fit.mape < 1e-3
    assert fit.r_squared > 0.9999
    assert fit.num_outliers == 0
    assert fit.num_held_out == pytest.approx((fit.num_fitted + fit.num_held_out) / 5, abs=1)
    assert fit.costs.host_launch_seconds == pytest.approx(3e-4, rel=0.01)
    assert fit.costs.host_item_seconds == pytest.approx(2e-5, rel=0.01)
    assert fit.costs.host_row_seconds == pytest.approx(1e-6, rel=0.01)
    assert fit.costs.host_call_seconds == pytest.approx(1e-4, rel=0.01)
    assert fit.costs.host_call_row_seconds == pytest.approx(2e-7, rel=0.01)
    assert fit.costs.decode_key_seconds == pytest.approx(2e-6, rel=0.01)
    assert fit.costs.num_planes == 4


def test_several_passes_of_a_deterministic_engine_are_calls_of_one():
    log = log_of(policy="atomic", is_deterministic=True)
    fit = fitted(log)
    check_launches(fit.costs, log, 2e-3)
    assert {kind for kind, _ in fit.num_launches} == {LaunchKind.RECURRENT, LaunchKind.HEAD}
    assert fit.costs.host_launch_seconds == pytest.approx(3e-4, rel=0.01)
    assert fit.costs.host_item_seconds == pytest.approx(2e-5, rel=0.01)
    assert fit.costs.host_call_seconds + 64 * fit.costs.host_call_row_seconds == pytest.approx(
        1e-4 + 64 * 2e-7, rel=0.01
    )


def test_noise_comes_out_as_the_error_and_leaves_little_bias():
    log = log_of(noise=0.1)
    fit = fitted(log)
    check_launches(fit.costs, log_of(), 0.12)
    assert 0.04 < fit.mape < 0.12
    assert fit.bias == pytest.approx(1, abs=0.03)


def test_of_times_with_a_long_tail_the_sum_is_met_and_not_the_middle():
    """A third of the launches takes 1.4 times as long: the middle one does not, the run does."""

    def slow(event):
        seconds = (event.ended - event.started) * (1.4 if event.record.index % 3 == 2 else 1.0)
        return replace(event, ended=event.started + seconds)

    fit = fitted(log_of(change=slow))
    assert fit.num_outliers == 0
    assert fit.bias == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("run_ahead", [0, 1, 4])
def test_a_log_without_waits_is_met_whatever_is_launched_ahead(run_ahead):
    log = log_of(waits=False, run_ahead=run_ahead)
    fit = fitted(log)
    check_launches(fit.costs, log, 2e-3)
    assert fit.mape < 1e-3
    assert fit.costs.host_launch_seconds == pytest.approx(3e-4, rel=0.01)
    assert fit.costs.host_call_seconds == pytest.approx(1e-4, rel=0.01)


def test_where_every_pass_has_a_head_their_sum_is_met():
    log = log_of(waits=False, plan=replace(PLAN, exit_mode=ExitMode.OURO))
    costs = fitted(log).costs
    records = {event.record for event in log.events if isinstance(event, LaunchEvent)}
    for record in records:
        works = [work for work in (work_of(record), head_of(record)) if work is not None]
        seconds = [sum(map(table.seconds, works)) for table in (costs, TRUTH)]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.03)


def test_a_head_that_had_nothing_to_do_is_none_and_other_forms_have_factors():
    truth = replace(TRUTH, head_factors={"copies": 1.5})
    log = log_of(costs=truth)
    forms = {
        event.record.head.form
        for event in log.events
        if isinstance(event, LaunchEvent) and event.record.head is not None
    }
    assert forms == {"greedy", "greedy_copies"}
    fit = fitted(log)
    assert fit.costs.head_factors == {"greedy_copies": pytest.approx(1.5, rel=0.02)}
    check_launches(fit.costs, log, 0.02, truth)
    record = next(e.record for e in log.events if isinstance(e, LaunchEvent) and e.record.head)
    idle = tuple(replace(item, status=RowStatus.STAYED) for item in record.items)
    record = replace(record, items=idle)
    assert head_of(record) is not None
    assert head_of(replace(record, head=replace(record.head, form=CONDITIONAL))) is None
    assert forms_module.CONDITIONAL.name == CONDITIONAL


def test_launches_that_were_done_before_the_host_turned_to_them_share_a_sample():
    """The host is slower than a pass, and quicker than a pass and a head."""
    truth = replace(TRUTH, host_launch_seconds=4.5e-3)
    log = log_of(waits=False, costs=truth)
    launches = [event for event in log.events if isinstance(event, LaunchEvent)]
    used = samples_of(launches, waits_for_device=False).used
    assert max(len(sample.works) for sample in used) >= 4
    fit = fitted(log)
    assert fit.costs.host_launch_seconds == pytest.approx(4.5e-3, rel=0.01)
    assert fit.mape < 0.02
    check_launches(fit.costs, log, 0.1, truth)


def test_a_log_whose_host_never_waits_is_refused_with_what_to_do():
    slow = replace(TRUTH, host_launch_seconds=20e-3)
    plan = replace(PLAN, rate=None, concurrency=4)
    with pytest.raises(LoopedError, match="with --run-ahead 0 or --launch-log-waits"):
        fitted(log_of(waits=False, costs=slow, plan=plan))


@pytest.mark.parametrize(
    ("host_launch_seconds", "run_ahead"), [(1e-3, 0), (1e-3, 1), (4e-3, 0), (7e-3, 0)]
)
@pytest.mark.parametrize("policy", ["mixed", "separate"])
def test_a_log_without_waits_of_a_slow_host_predicts_its_run(
    host_launch_seconds, run_ahead, policy
):
    """The device runs dry between launches, and what it waits for is not booked as its own."""
    truth = replace(TRUTH, host_launch_seconds=host_launch_seconds, host_call_seconds=5e-4)
    plan = replace(PLAN, rate=None, concurrency=4)
    fit = fitted(log_of(waits=False, costs=truth, plan=plan, run_ahead=run_ahead))
    assert fit.costs.host_launch_seconds == pytest.approx(host_launch_seconds, rel=0.02)
    assert fit.mape < 0.02
    workload = plan.workload(3)
    config = scheduler_config(workload, SMALL | {"policy": policy})
    runs = [Summary.of(simulate(workload, config, table)).numbers for table in (fit.costs, truth)]
    for name in ("makespan", "ttft_p50", "itl_p50"):
        assert runs[0][name] == pytest.approx(runs[1][name], rel=0.04)


def test_a_fitted_table_predicts_another_policy():
    costs = fitted(log_of()).costs
    workload = replace(PLAN, rate=9.0).workload(5)
    config = scheduler_config(workload, SMALL | {"policy": "separate"})
    ends = [simulate(workload, config, table).launches[-1].visible for table in (costs, TRUTH)]
    assert ends[0] == pytest.approx(ends[1], rel=0.02)


def test_stalls_are_dropped_and_counted():
    def stall(event):
        late = event.ended + 1.0 if event.record.index % 40 == 17 else event.ended
        return replace(event, ended=late)

    log = log_of(change=stall)
    fit = fitted(log)
    assert (
        0
        < fit.num_outliers
        == sum(
            event.record.index % 40 == 17 for event in log.events if isinstance(event, LaunchEvent)
        )
    )
    check_launches(fit.costs, log, 1e-3)


def test_launches_that_compiled_are_dropped_and_counted():
    """A launch that was applied says of those that were dispatched by then what they compiled."""

    def compiled(event):
        num_out, index = event.launch_index, event.record.index
        late = event.ended + 0.004 * (index in (3, 30))
        return replace(event, ended=late, num_compilations=int(num_out > 3) + int(num_out > 30))

    fit = fitted(log_of(change=compiled, run_ahead=1))
    # Those two, and the first two that went out together, of which nobody knows.
    assert fit.num_compiling == 4
    assert fit.num_outliers == 0


def test_a_short_log_and_one_of_two_engines_are_refused():
    log = log_of()
    with pytest.raises(LoopedError, match="expected 50 samples or more, got"):
        fitted(replace(log, events=log.events[:40]))
    engine = log.events[0]
    assert isinstance(engine, EngineEvent)
    other = replace(engine, engine_index=1)
    with pytest.raises(LoopedError, match="expected a log of one engine, got 2"):
        fitted(replace(log, events=(*log.events, other)))


@pytest.mark.parametrize(
    ("options", "head_buckets"),
    [({}, {2, 4, 8}), ({"deterministic": True, "policy": "atomic"}, {8})],
)
def test_a_log_of_an_engine_can_be_fitted(tiny_folder, options, head_buckets):
    events = []
    # Each launch is read before the next is made, so that each has an end of its own.
    engine = logged_engine(tiny_folder, events.append, run_ahead=0, **options)
    for index in range(6):
        prompt = list(range(3, 20 + 7 * index))
        exits = ExitOptions(threshold=0.9, min_loops=1)
        params = SamplingParams(max_tokens=20, ignore_eos=True, exit=exits)
        engine.add_request(str(index), prompt, params)
    drain_samples(engine)
    fit = fitted(LaunchLog(Path("run.jsonl"), {"waits_for_device": False}, tuple(events)))
    # The floor itself may come out as 0 where a busy host hides what the device does.
    assert 0.5 < fit.bias < 2
    assert fit.mape < 1
    assert fit.costs.overheads[LaunchKind.HEAD]
    assert fit.num_fitted + fit.num_held_out >= 50
    assert set(fit.costs.overheads[LaunchKind.HEAD]) <= head_buckets
    if options:
        records = [event.record for event in events if isinstance(event, LaunchEvent)]
        assert any(record.num_calls == 4 for record in records)
        assert set(fit.num_launches) == {(LaunchKind.RECURRENT, 32), (LaunchKind.HEAD, 8)}
