"""Known times give known latencies, goodput and backlog; a late client makes a run invalid."""

import asyncio
from heapq import heappop, heappush
from pathlib import Path

import pytest
from fake_completions import FakeCompletions, steady
from load_runs import load_run, served
from virtual_loop import run_virtually

from looped.bench.serve.load_client import LoadClient
from looped.bench.serve.load_run import play_run
from looped.bench.serve.load_summary import RULES, Judgement, summarise_run
from looped.bench.serve.served_request import Failure, Objective
from looped.measure.arrivals import Prompt, poisson_arrivals
from looped.measure.backlog import backlogs

JUDGEMENT = Judgement(objective=Objective(ttft=1.0, itl=0.2))


def test_latencies_are_pooled_and_goodput_counts_what_met_both():
    summary = summarise_run(
        load_run(
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
    assert summarise_run(load_run(*requests), JUDGEMENT).backlog_at_last == 2


def test_a_backlog_that_grows_is_not_sustained_though_all_are_in_time():
    patient = Judgement(objective=Objective(ttft=1e9, itl=1e9))
    steady = [served(i, 0.25 * i, first=2.0) for i in range(64)]
    assert summarise_run(load_run(*steady), patient).is_sustained
    growing = [served(i, 0.25 * i, first=2.0 + 0.5 * i) for i in range(64)]
    summary = summarise_run(load_run(*growing), patient)
    assert summary.attainment == 1.0
    assert not summary.is_backlog_bounded
    assert not summary.is_sustained


def crowd(load, num_requests, seed, num_slots=64):
    """Requests of a second each on so many slots, in order of arrival; a load of 1 fills them."""
    prompts = [Prompt((1,), 1)] * num_requests
    free = [0.0] * num_slots
    for arrival in poisson_arrivals(prompts, load * num_slots, seed=seed):
        end = max(arrival.time, heappop(free)) + 1.0
        heappush(free, end)
        yield served(arrival.index, arrival.time, first=end - arrival.time, gaps=())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("load", "is_kept_up_with"), [(0.9, True), (1.3, False)])
def test_a_load_that_is_a_third_too_large_is_not_sustained_and_one_below_is(
    load, is_kept_up_with, seed
):
    patient = Judgement(objective=Objective(), max_queue=1e9)
    summary = summarise_run(load_run(*crowd(load, 400, seed)), patient)
    assert summary.is_valid
    assert summary.is_backlog_bounded is summary.is_sustained is is_kept_up_with


def test_a_run_whose_client_was_late_is_invalid_and_says_by_how_much():
    requests = [served(i, float(i), lag=0.25 if i == 3 else 0.001) for i in range(20)]
    summary = summarise_run(load_run(*requests), JUDGEMENT)
    (violation,) = summary.violations
    assert "client_in_time, run0" in str(violation)
    assert "1 of 20 were later, request 3 by 0.250 s" in str(violation)
    assert not summary.is_sustained
    assert summarise_run(
        load_run(*requests), Judgement(objective=JUDGEMENT.objective, max_lag=0.3)
    ).is_valid


def test_a_run_whose_client_stood_still_is_invalid_though_every_request_was_sent_in_time():
    requests = [served(i, float(i)) for i in range(20)]
    summary = summarise_run(load_run(*requests, lateness=[0.001, 0.35, 0.0]), JUDGEMENT)
    (violation,) = summary.violations
    assert "client_reads_in_time, run0" in str(violation)
    assert "by 0.350 s" in str(violation)
    assert summary.is_limited_by_client
    assert not summary.is_sustained
    assert summary.lateness.count == 3
    assert summarise_run(load_run(*requests, lateness=[0.001] * 9), JUDGEMENT).is_valid


def test_a_client_that_is_kept_busy_while_answers_come_in_is_seen():
    async def hog(index, body):
        async for piece in steady(index, body):
            yield piece
        asyncio.get_running_loop().clock.now += 0.5  # half a second in which nothing is read

    async def work():
        async with LoadClient(
            "http://fake", model="fake", transport=FakeCompletions(hog)
        ) as client:
            arrivals = poisson_arrivals([Prompt((1,), 3)], 2.0, seed=0)
            return await play_run(client, arrivals, name="run0", rate=2.0)

    found = run_virtually(work())
    assert max(request.lag for request in found.requests) < 1e-3
    assert max(found.lateness) == pytest.approx(0.5, abs=0.03)
    (violation,) = summarise_run(found, JUDGEMENT).violations
    assert violation.rule == "client_reads_in_time"


def test_a_run_of_which_nothing_ended_well_is_invalid():
    refused = [served(i, float(i), failure=Failure.REFUSED) for i in range(20)]
    summary = summarise_run(load_run(*refused), JUDGEMENT)
    (violation,) = summary.violations
    assert "some_request_ends_well, run0" in str(violation)
    assert "all 20 failed; request 0: refused: 429: full" in str(violation)
    assert summary.is_hopeless
    assert not summary.is_limited_by_client
    assert summarise_run(load_run(*refused[:-1], served(19, 19.0)), JUDGEMENT).is_valid


def test_the_queue_is_what_the_server_says_or_at_most_the_first_token():
    requests = [served(i, float(i), first=3.0) for i in range(20)]
    patient = Judgement(objective=Objective(ttft=10.0))
    summary = summarise_run(load_run(*requests, median_queue=0.25), patient)
    assert (summary.queue_p50, summary.is_queue_counted) == (0.25, True)
    assert summary.is_sustained
    assert not summarise_run(load_run(*requests, median_queue=2.5), patient).is_sustained
    summary = summarise_run(load_run(*requests), patient)
    assert (summary.queue_p50, summary.is_queue_counted) == (pytest.approx(3.0), False)
    assert not summary.is_sustained
    relaxed = Judgement(objective=Objective(ttft=10.0), max_queue=3.5)
    assert summarise_run(load_run(*requests), relaxed).is_sustained


def test_requests_that_have_the_server_to_themselves_cannot_be_helped_by_a_lower_rate():
    alone = summarise_run(load_run(*[served(i, 2.0 * i, first=1.5) for i in range(20)]), JUDGEMENT)
    assert (alone.mean_backlog, alone.attainment) == (1.0, 0.0)
    assert alone.is_hopeless
    crowd = summarise_run(load_run(*[served(i, 0.5 * i, first=1.5) for i in range(20)]), JUDGEMENT)
    assert not crowd.is_hopeless


def test_a_run_against_a_server_with_counters_has_what_they_rose_by():
    pages = iter(range(100))

    def metrics():
        page = next(pages)
        return (
            "# TYPE looped_mixed_launches_total counter\n"
            f"looped_mixed_launches_total {10 + 7 * page}\n"
            "# TYPE looped_requests_waiting gauge\n"
            f"looped_requests_waiting {3.0 if page == 1 else 0.0}\n"
            "# TYPE looped_queue_seconds histogram\n"
            f'looped_queue_seconds_bucket{{le="0.5"}} {5 + 2 * page}\n'
            f'looped_queue_seconds_bucket{{le="1.0"}} {5 + 10 * page}\n'
            f'looped_queue_seconds_bucket{{le="+Inf"}} {5 + 10 * page}\n'
            "# TYPE vllm_things counter\nvllm_things_total 5\n"
        )

    async def work():
        async with LoadClient(
            "http://fake", model="fake", transport=FakeCompletions(metrics=metrics)
        ) as client:
            arrivals = poisson_arrivals([Prompt((1,), 3)] * 5, 2.0, seed=0)
            return await play_run(client, arrivals, name="run0", rate=2.0)

    summary = summarise_run(run_virtually(work()), JUDGEMENT)
    assert summary.counted == {"mixed_launches": 14}  # before, at the last arrival, after
    assert summary.waiting_at_last == 3
    assert summary.is_queue_counted
    assert summary.queue_p50 == pytest.approx(0.5 + 0.5 * (10 - 4) / 16)  # of 20, 4 below 0.5
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


def test_every_rule_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    for rule in RULES:
        assert rule.__doc__
        assert f"`{rule.__name__}`" in page
