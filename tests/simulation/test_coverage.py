"""Launches that a cost table names, and those that it does not."""

from dataclasses import replace

from simulations import COSTS, PLAN, SMALL, simulated

from looped.sched import PROGRAM_KINDS, LaunchKind
from looped.simulation.coverage import unnamed_share
from looped.simulation.runs import scheduler_config, simulate

ALL = {kind: dict.fromkeys(range(1, 65), 0.0) for kind in PROGRAM_KINDS}


def test_the_share_is_of_launches_whose_bucket_or_whose_heads_is_not_named():
    timeline = simulated()
    heads = sum(launch.record.head is not None for launch in timeline.launches)
    assert unnamed_share(timeline, replace(COSTS, overheads=ALL)) == 0
    without = {kind: buckets for kind, buckets in ALL.items() if kind is not LaunchKind.HEAD}
    share = unnamed_share(timeline, replace(COSTS, overheads=without))
    assert 0 < share == 100 * heads / len(timeline.launches) < 100
    without = {kind: buckets for kind, buckets in ALL.items() if kind is LaunchKind.HEAD}
    assert unnamed_share(timeline, replace(COSTS, overheads=without)) == 100


def test_a_table_that_was_not_fitted_has_none():
    assert unnamed_share(simulated(), COSTS) is None
    assert unnamed_share(simulated(), replace(COSTS, overheads=ALL, is_estimate=True)) is None


def test_passes_that_a_deterministic_engine_splits_are_calls_of_the_single_one():
    workload = PLAN.workload(0)
    config = scheduler_config(workload, SMALL | {"policy": "atomic"})
    timeline = simulate(workload, config, COSTS, is_deterministic=True)
    assert any(launch.record.kind is LaunchKind.PREFILL for launch in timeline.launches)
    named = {LaunchKind.RECURRENT: {64: 0.0}, LaunchKind.HEAD: {4: 0.0}}
    assert unnamed_share(timeline, replace(COSTS, overheads=named)) == 0
