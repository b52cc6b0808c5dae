"""When simulated requests come."""

from scheduler_rig import request_of

from looped.sched import Arrival, ClosedArrivals, TimedArrivals


def test_timed_requests_come_at_their_times_in_the_order_of_equal_ones() -> None:
    requests = {name: request_of(name) for name in "abcd"}
    times = {"a": 2.0, "b": 1.0, "c": 2.0, "d": 5.0}
    source = TimedArrivals(Arrival(times[name], requests[name]) for name in "abcd")
    assert source.next_time == 1.0
    assert source.due(0.5) == []
    assert [arrival.request.request_id for arrival in source.due(2.0)] == ["b", "a", "c"]
    source.ended(requests["a"], 3.0)
    assert source.next_time == 5.0
    assert [arrival.time for arrival in source.due(9.0)] == [5.0]
    assert source.next_time is None


def test_a_closed_loop_sends_the_next_request_when_one_ends() -> None:
    requests = [request_of(name) for name in "abc"]
    source = ClosedArrivals(requests, concurrency=2)
    assert source.next_time == 0.0
    assert [arrival.request.request_id for arrival in source.due(0.0)] == ["a", "b"]
    assert source.next_time is None
    source.ended(requests[1], 4.0)
    assert source.due(4.0) == [Arrival(4.0, requests[2])]
    source.ended(requests[0], 5.0)
    assert source.next_time is None
    assert source.due(6.0) == []
