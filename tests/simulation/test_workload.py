"""Simulated workloads: lengths and arrivals."""

import sys
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from simulations import COSTS

from looped.errors import UsageError
from looped.measure.arrivals import arrival_times
from looped.sched import ClosedArrivals, ExitMode
from looped.simulation.loads.depths import FullDepth, depth_source
from looped.simulation.loads.workload import Lengths, Workload, WorkloadRequest, synthetic_requests
from looped.simulation.runs import scheduler_config, simulate

FULL = FullDepth(4)


ONE_REQUEST = [WorkloadRequest(3, 4)]


def workload(requests=ONE_REQUEST, **options):
    return Workload(requests=requests, **({"depths": FULL, "num_planes": 4} | options))


def come(arrivals):
    return list(arrivals.due(float("inf")))


@pytest.mark.parametrize(
    ("burstiness", "spread"), [(None, 1.0), (1.0, 1.0), (0.2, 0.2), (3.0, 3.0)]
)
def test_gaps_between_arrivals_have_the_rate_and_the_burstiness(burstiness, spread):
    times = arrival_times(20_000, 5.0, seed=1, burstiness=burstiness)
    gaps = [then - first for first, then in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.2, rel=0.1)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(spread, rel=0.1)


def test_two_rates_see_the_same_bursts():
    slow, fast = (arrival_times(50, rate, seed=4, burstiness=2.0) for rate in (1.0, 4.0))
    assert slow == pytest.approx([4 * time for time in fast])


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 1.0, "burstiness": 0.0}])
def test_a_process_without_a_rate_or_burstiness_is_refused(options):
    with pytest.raises(UsageError, match="above 0"):
        arrival_times(3, seed=0, **options)


def test_lengths_are_one_number_or_a_range():
    assert Lengths.parse("5") == Lengths(5, 5)
    assert Lengths.parse("5:9") == Lengths(5, 9)
    drawn = {
        one.prompt_tokens for one in synthetic_requests(200, Lengths(5, 9), Lengths(1, 1), seed=0)
    }
    assert drawn == {5, 6, 7, 8, 9}
    for text in ("few", "0", "9:5", "1:2:3", ""):
        with pytest.raises(UsageError, match="length"):
            Lengths.parse(text)


def test_requests_run_the_loops_of_their_source_and_share_no_prompt():
    made = workload(
        synthetic_requests(20, Lengths(40, 40), Lengths(9, 9), seed=1),
        depths=depth_source("easy", 4, seed=1),
        rate=2.0,
    )
    first, again = come(made.arrivals()), come(made.arrivals())
    requests = [arrival.request for arrival in first]
    assert [one.exit_rule.trace for one in requests] == [
        made.depths.depths(index, 9) for index in range(20)
    ]
    assert len({one.prompt_token_ids[:16] for one in requests}) == 20
    assert [arrival.time for arrival in first] == [arrival.time for arrival in again]
    assert requests[0] is not again[0].request
    assert made.longest == 49


def test_lengths_do_not_depend_on_what_is_shared():
    own, shared = (
        synthetic_requests(9, Lengths(30, 50), Lengths(1, 9), seed=3, shared_prefix_tokens=tokens)
        for tokens in (0, 29)
    )
    assert [replace(one, shared_prefix_tokens=29) for one in own] == shared


@pytest.mark.parametrize("tokens", [30, -1])
def test_every_prompt_has_a_token_of_its_own(tokens):
    with pytest.raises(UsageError, match=rf"below the shortest prompt.*got {tokens}, and .*30"):
        synthetic_requests(9, Lengths(30, 50), Lengths(1, 9), seed=3, shared_prefix_tokens=tokens)


def test_a_workload_has_a_largest_size_wherever_its_requests_are_from(monkeypatch):
    monkeypatch.setattr("looped.simulation.loads.workload.MOST_REQUESTS", 2)
    assert workload(ONE_REQUEST * 2, concurrency=1).longest == 7
    with pytest.raises(UsageError, match="expected 1 to 2 requests, got 3"):
        workload(ONE_REQUEST * 3, concurrency=1)


def test_a_closed_loop_lets_go_of_the_requests_that_are_over():
    arrivals = workload(ONE_REQUEST * 3, concurrency=1).arrivals()
    (first,) = come(arrivals)
    arrivals.ended(first.request, 1.0)
    (second,) = come(arrivals)
    assert second.request.request_id == "1"
    count = sys.getrefcount(first.request)
    assert count == 2  # its arrival's here, and the argument


def test_a_closed_loop_takes_its_requests_in_order():
    made = workload([WorkloadRequest(3, n) for n in (1, 2, 3)], concurrency=2)
    arrivals = made.arrivals()
    assert isinstance(arrivals, ClosedArrivals)
    assert [arrival.request.max_tokens for arrival in come(arrivals)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "expected a rate, or a concurrency"),
        ({"rate": 1.0, "concurrency": 2}, "takes no rate"),
        ({"burstiness": 1.0, "concurrency": 2}, "no burstiness"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
        ({"rate": 0.0}, "expected a rate above 0"),
        ({"requests": [WorkloadRequest(1, 1, 0.0)], "burstiness": 1.0}, "take no burstiness"),
    ],
)
def test_ways_to_come_that_contradict_each_other_are_refused(options, complaint):
    with pytest.raises(UsageError, match=complaint):
        workload(**options)


def test_depths_that_are_no_trace_are_refused_by_request():
    made = workload([WorkloadRequest(3, 2, depths=(3, 1))], rate=1.0)
    with pytest.raises(UsageError, match=r"request 0 of the workload.*begin with 4"):
        come(made.arrivals())


@pytest.mark.parametrize("mode", [ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD])
def test_depths_can_be_come_to_by_signals_that_are_read(mode):
    requests = [WorkloadRequest(5, 5, depths=(4, 2, 3, 4, 2))]
    made = workload(requests, rate=1.0, exit_mode=mode)
    (request,) = (arrival.request for arrival in come(made.arrivals()))
    assert (request.exit_rule.mode, request.exit_rule.threshold) == (mode, 0.5)
    timeline = simulate(made, scheduler_config(made, {}), COSTS)
    tokens = timeline.tokens["0", 0]
    assert [token.token.exit_depth for token in tokens] == [4, 2, 3, 4, 2]
    reads = [launch.record.num_readbacks for launch in timeline.launches]
    known = workload(requests, rate=1.0)
    fewer = simulate(known, scheduler_config(known, {}), COSTS).launches
    assert sum(reads) > sum(launch.record.num_readbacks for launch in fewer)


def test_a_mode_that_looks_ahead_has_no_token_of_one_loop():
    made = workload([WorkloadRequest(5, 2, depths=(4, 1))], rate=1.0, exit_mode=ExitMode.LOOKAHEAD)
    with pytest.raises(UsageError, match="request 0 of the workload: exit mode lookahead decides"):
        come(made.arrivals())
