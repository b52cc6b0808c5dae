"""Known times give known latencies, goodput and backlog; a late client makes a run invalid."""

import pytest
from fake_completions import FakeCompletions
from virtual_loop import run_virtually

from looped.bench.arrivals import Prompt, poisson_arrivals
from looped.bench.load_client import LoadClient
from looped.bench.load_run import LoadRun, play_run
from looped.bench.load_summary import Judgement, backlogs, summarise
from looped.bench.served_request import Failure, Objective, ServedRequest

JUDGEMENT = Judgement(objective=Objective(ttft=1.0, itl=0.2))


def served(index, arrival, *, first=0.5, gaps=(0.1, 0.1), failure=None, lag=0.0, tail=0.0):
    times = [arrival + first]
    for gap in gaps:
        times.append(times[-1] + gap)
    return ServedRequest(
        index=index,
        arrival=arrival,
        sent=arrival + lag,
        ended=times[-1] + tail,
        chunk_times=tuple(times),
        prompt_tokens=10,
        output_tokens=len(times),
        failure=failure,
        detail="429: full" if failure else "",
    )


def run(*requests):
    return LoadRun(name="run0", rate=2.0, requests=list(requests))


def test_latencies_are_pooled_and_goodput_counts_what_met_both():
    summary = summarise(
        run(
            served(0, 0.0),
            served(1, 1.0, first=1.5),  # late
            served(2, 2.0, gaps=(0.1, 0.3)),  # stalls
            served(3, 3.0, gaps=()),  # has no gaps
            served(4, 4.0, failure=Failure.REFUSED),
            served(5, 9.0, tail=0.3),
        ),
        JUDGEMENT,
    )
    assert summary.seconds == pytest.approx(10.0)
    assert summary.ttft.count == 5
    assert summary.ttft.p50 == pytest.approx(0.5)
    assert summary.ttft.largest == pytest.approx(1.5)
    assert summary.itl.count == 8
    assert summary.itl.largest == pytest.approx(0.3)
    assert summary.itl.p99 is None  # of eight values
    assert summary.attainment == pytest.approx(3 / 6)
    assert summary.goodput == pytest.approx(3 / 10)
    assert summary.requests_per_second == pytest.approx(5 / 10)
    assert summary.output_tokens_per_second == pytest.approx(16 / 10)
    assert summary.prompt_tokens_per_second == pytest.approx(50 / 10)
    assert summary.failures == {"refused (429)": 1}
    assert summary.failure_details == {"refused (429)": "429: full"}
    assert summary.is_valid
    assert not summary.is_sustained  # half is not 90 %


def test_the_backlog_is_what_was_due_and_not_over():
    requests = [served(0, 0.0), served(1, 0.4), served(2, 0.5, gaps=(9.0,)), served(3, 1.15)]
    assert backlogs(requests) == [1, 2, 3, 2]
    assert summarise(run(*requests), JUDGEMENT).backlog_at_last == 2


def test_a_backlog_that_grows_is_not_sustained_though_all_are_in_time():
    patient = Judgement(objective=Objective(ttft=1e9, itl=1e9))
    steady = [served(i, 0.25 * i, first=2.0) for i in range(64)]
    assert summarise(run(*steady), patient).is_sustained
    growing = [served(i, 0.25 * i, first=2.0 + 0.5 * i) for i in range(64)]
    summary = summarise(run(*growing), patient)
    assert summary.attainment == 1.0
    assert not summary.is_backlog_bounded
    assert not summary.is_sustained


def test_a_run_whose_client_was_late_is_invalid_and_says_by_how_much():
    requests = [served(i, float(i), lag=0.25 if i == 3 else 0.001) for i in range(20)]
    summary = summarise(run(*requests), JUDGEMENT)
    (violation,) = summary.violations
    assert "client_in_time, run0" in str(violation)
    assert "1 of 20 were later, request 3 by 0.250 s" in str(violation)
    assert not summary.is_sustained
    assert summarise(run(*requests), Judgement(objective=JUDGEMENT.objective, max_lag=0.3)).is_valid


def test_a_run_against_a_server_with_counters_has_what_they_rose_by():
    pages = iter(range(100))

    def metrics():
        page = next(pages)
        return (
            "# TYPE looped_mixed_launches_total counter\n"
            f"looped_mixed_launches_total {10 + 7 * page}\n"
            "# TYPE looped_requests_waiting gauge\n"
            f"looped_requests_waiting {3.0 if page == 1 else 0.0}\n"
            "# TYPE vllm_things counter\nvllm_things_total 5\n"
        )

    async def work():
        async with LoadClient(
            "http://fake", model="fake", transport=FakeCompletions(metrics=metrics)
        ) as client:
            arrivals = poisson_arrivals([Prompt((1,), 3)] * 5, 2.0, seed=0)
            return await play_run(client, arrivals, name="run0", rate=2.0)

    summary = summarise(run_virtually(work()), JUDGEMENT)
    assert summary.counted == {"mixed_launches": 14}  # before, at the last arrival, after
    assert summary.waiting_at_last == 3
    assert summary.attainment == 1.0
    assert summary.client_load > 0


def test_a_page_of_metrics_that_cannot_be_read_is_left_alone():
    async def work():
        transport = FakeCompletions(metrics=lambda: '{"not": "prometheus"}')
        async with LoadClient("http://fake", model="fake", transport=transport) as client:
            arrivals = poisson_arrivals([Prompt((1,), 3)] * 5, 2.0, seed=0)
            return await play_run(client, arrivals, name="run0", rate=2.0)

    run = run_virtually(work())
    assert run.counted == {}
    assert run.waiting_at_last is None
    assert len(run.requests) == 5
