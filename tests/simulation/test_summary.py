"""What a run says of itself, from its log."""

import pytest
from simulations import COSTS, PLAN, simulated

from looped.errors import LoopedError
from looped.record.timeline import Timeline
from looped.sched import LaunchKind
from looped.simulation.summary import UNITS, Summary


def test_numbers_follow_from_the_launches():
    timeline = simulated("separate")
    summary = Summary.of(timeline)
    numbers = summary.numbers
    assert list(numbers) == list(UNITS)
    launches, names = timeline.launches, list(timeline.requests)
    first = min(event.time for event in timeline.requests.values())
    assert numbers["makespan"] == pytest.approx(launches[-1].visible - first)
    waits = sorted(timeline.tokens[n][0].time - timeline.requests[n].time for n in names)
    assert numbers["ttft_p50"] == pytest.approx((waits[5] + waits[6]) / 2)
    assert numbers["ttft_p99"] is None
    num_prompt = sum(event.num_prompt_tokens for event in timeline.requests.values())
    loops = numbers["prompt_token_loops_per_second"] * numbers["makespan"]
    assert loops == pytest.approx(4 * num_prompt)
    assert summary.num_launches[LaunchKind.RECURRENT] == numbers["recurrent_launches"]
    # A head draws one token at least, and a launch has one head at most.
    assert numbers["heads"] == sum(bool(launch.tokens) for launch in launches)
    assert numbers["heads"] < numbers["launches"] == len(launches)
    assert 0 < numbers["real_rows"] <= 100
    assert 1 <= numbers["loops_per_token"] <= 4


def test_tokens_and_loops_are_those_of_the_workload():
    workload = PLAN.workload(0)
    requests = [arrival.request for arrival in workload.arrivals().due(1e9)]
    summary = Summary.of(simulated())
    assert summary.num_output_tokens == sum(one.max_tokens for one in requests)
    assert summary.num_loops == sum(sum(one.exit_rule.trace) for one in requests)
    assert summary.decode_token_loops == sum(sum(one.exit_rule.trace[1:]) for one in requests)


def test_mixing_shares_launches():
    mixed, separate = (Summary.of(simulated(policy)).numbers for policy in ("mixed", "separate"))
    assert mixed["launches"] < separate["launches"]
    assert mixed["rows_per_pass"] > separate["rows_per_pass"]


def test_arrivals_that_the_log_does_not_know_can_be_given():
    timeline = simulated()
    early = {name: event.time - 1.0 for name, event in timeline.requests.items()}
    numbers, later = Summary.of(timeline).numbers, Summary.of(timeline, early).numbers
    assert later["ttft_p50"] == pytest.approx(numbers["ttft_p50"] + 1.0)
    assert later["makespan"] == pytest.approx(numbers["makespan"] + 1.0)
    assert later["itl_p50"] == numbers["itl_p50"]


def test_an_empty_log_has_nothing_to_sum_up():
    with pytest.raises(LoopedError, match="has none to sum up"):
        Summary.of(Timeline([]))


def test_costs_are_what_makes_a_run_last():
    assert COSTS.weight_floor > 0
    numbers = Summary.of(simulated()).numbers
    assert numbers["makespan"] > numbers["launches"] * COSTS.host_launch_seconds
