"""Fits find the costs that a log was made with."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from engines import drain_samples, logged_engine
from simulations import COSTS, PLAN, SMALL

from looped.engine.events import EngineEvent, LaunchEvent
from looped.errors import LoopedError
from looped.record.launch_log import LaunchLog
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, LaunchKind
from looped.simulation.fitting.fit import fit_costs
from looped.simulation.fitting.samples import samples_of, work_of
from looped.simulation.runs import scheduler_config, simulate
from looped.simulation.summary import Summary

PLAN = replace(PLAN, num_requests=60, exit_mode=ExitMode.OURO)
TRUTH = replace(
    COSTS,
    decode_key_seconds=2e-6,
    prompt_key_seconds=4e-7,
    overheads={
        LaunchKind.RECURRENT: {2: 0.0, 8: 2e-4, 32: 5e-4, 64: 1e-3},
        LaunchKind.CODA: {2: 0.0, 4: 3e-4},
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
):
    """A log of a simulated run, its device times shaken."""
    events = []
    workload = plan.workload(0)
    config = scheduler_config(workload, SMALL | {"policy": policy})
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
    works = {work_of(event.record) for event in log.events if isinstance(event, LaunchEvent)}
    assert len(works) > 50
    for work in works:
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
    assert {kind for kind, _ in fit.num_launches} == {LaunchKind.RECURRENT, LaunchKind.CODA}
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


def test_launches_that_were_not_read_are_timed_up_to_the_next_read():
    log = log_of(waits=False)
    reads = [e.record.num_readbacks for e in log.events if isinstance(e, LaunchEvent)]
    assert 0 < sum(reads) < len(reads)
    used = samples_of(
        [event for event in log.events if isinstance(event, LaunchEvent)], waits_for_device=False
    ).used
    assert max(len(sample.works) for sample in used) >= 3
    fit = fitted(log)
    check_launches(fit.costs, log, 0.03)


@pytest.mark.parametrize("host_launch_seconds", [1e-3, 4e-3, 7e-3])
@pytest.mark.parametrize("policy", ["mixed", "separate"])
def test_a_log_without_waits_of_a_slow_host_predicts_its_run(host_launch_seconds, policy):
    """The device runs dry between launches, and what it waits for is not booked as its own."""
    truth = replace(TRUTH, host_launch_seconds=host_launch_seconds, host_call_seconds=5e-4)
    plan = replace(PLAN, exit_mode=ExitMode.TRACE, rate=None, concurrency=4)
    fit = fitted(log_of(waits=False, costs=truth, plan=plan))
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
    def compiled(event):
        index = event.record.index
        late = event.ended + 0.004 * (index in (3, 30))
        return replace(event, ended=late, num_compilations=int(index >= 3) + int(index >= 30))

    fit = fitted(log_of(change=compiled))
    assert fit.num_compiling == 3  # those two, and the first launch, of which nobody knows
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
    ("options", "coda_buckets"),
    [({}, {2, 4, 8}), ({"deterministic": True, "policy": "atomic"}, {8})],
)
def test_a_log_of_an_engine_can_be_fitted(tiny_folder, options, coda_buckets):
    events = []
    engine = logged_engine(tiny_folder, events.append, **options)
    for index in range(6):
        prompt = list(range(3, 20 + 7 * index))
        # Read after every loop, so that nearly every launch has an end of its own.
        exits = ExitOptions(threshold=0.9, min_loops=1)
        params = SamplingParams(max_tokens=20, ignore_eos=True, exit=exits)
        engine.add_request(str(index), prompt, params)
    drain_samples(engine)
    fit = fitted(LaunchLog(Path("run.jsonl"), {"waits_for_device": False}, tuple(events)))
    # The floor itself may come out as 0 where a busy host hides what the device does.
    assert 0.5 < fit.bias < 2
    assert fit.mape < 1
    assert fit.costs.overheads[LaunchKind.CODA]
    assert fit.num_fitted + fit.num_held_out >= 50
    assert set(fit.costs.overheads[LaunchKind.CODA]) <= coda_buckets
    if options:
        records = [event.record for event in events if isinstance(event, LaunchEvent)]
        assert any(record.num_calls == 4 for record in records)
        assert set(fit.num_launches) == {(LaunchKind.RECURRENT, 32), (LaunchKind.CODA, 8)}
