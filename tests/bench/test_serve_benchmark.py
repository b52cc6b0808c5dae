"""What a search says: one meaning in words, in JSON and for the exit code."""

import json

import pytest
from load_runs import load_run, served

from looped.bench.serve import benchmark as serve_benchmark
from looped.bench.serve.benchmark import ServeBenchmark
from looped.bench.serve.endpoint import Endpoint
from looped.bench.serve.load_summary import Judgement
from looped.bench.serve.open_loop import CapacitySearch, OpenLoopLoad, run_load
from looped.bench.serve.prompt_source import PromptSource
from looped.bench.serve.report import capacity_words, serve_page
from looped.bench.serve.served_request import Failure, Objective
from looped.errors import LoopedError, UsageError
from looped.measure.arrivals import Prompt, Sample
from looped.measure.capacity import find_capacity
from looped.measure.violation import check_valid

JUDGEMENT = Judgement(objective=Objective(ttft=1.0))


def good(arrivals):
    """At once, so that no backlog grows at any rate."""
    return [served(a.index, a.time, first=0.0, gaps=()) for a in arrivals]


def slow(arrivals):
    """Whatever the rate, the first token takes longer than is allowed; nothing queues."""
    return [served(a.index, a.time, first=1.2, gaps=()) for a in arrivals]


def crowded(arrivals):
    return [served(a.index, a.time, first=1.2 + 9 * a.index, gaps=()) for a in arrivals]


def late(arrivals):
    return [served(a.index, a.time, first=0.1, gaps=(), lag=0.3) for a in arrivals]


def refused(arrivals):
    return [served(a.index, a.time, failure=Failure.REFUSED) for a in arrivals]


def search(monkeypatch, behaviour, *, start=1.0, lowest=0.01, num_requests=40, seen=None):
    """A search on a server that behaves at each rate as `behaviour(rate)` says."""

    def measure_load(endpoint, arrivals, *, name, rate, log):
        return load_run(*behaviour(rate)(arrivals), name=name, rate=rate)

    monkeypatch.setattr(serve_benchmark, "measure_load", measure_load)
    benchmark = ServeBenchmark(
        Endpoint(url="http://fake"),
        lambda name: Sample([Prompt((1,), 1)] * num_requests),
        seed=0,
        judgement=JUDGEMENT,
        fewest_requests=16,
        on_run=(seen if seen is not None else []).append,
    )
    found = find_capacity(benchmark.measure, start=start, lowest=lowest, precision=1.2)
    return benchmark.result(found)


def words(result):
    return capacity_words(result.capacity, result.judgement)


def test_a_capacity_between_two_rates_is_valid(monkeypatch):
    result = search(monkeypatch, lambda rate: good if rate < 3 else crowded)
    check_valid(result.violations)
    values = result.to_json({})
    assert values["is_valid"]
    assert values["capacity"]["rate"] < 3 <= values["capacity"]["failed_rate"]
    assert words(result).startswith("Capacity: 2.83 requests/s for 90 % of requests to meet TTFT")
    assert words(result).endswith("; 3.36 is too much.")


def test_a_rate_at_which_all_requests_fail_bounds_a_capacity(monkeypatch):
    result = search(monkeypatch, lambda rate: good if rate < 3 else refused)
    assert result.violations == []
    assert result.to_json({})["is_valid"]


def test_a_search_that_the_client_ends_is_invalid_everywhere(monkeypatch):
    result = search(monkeypatch, lambda rate: good if rate < 3 else late)
    assert "or more: at 3.36 the client itself failed" in words(result)
    values = result.to_json({})
    assert not values["is_valid"]
    assert values["capacity"]["is_limited_by_client"]
    assert "**INVALID**: 1 broken rules." in "\n".join(serve_page({}, result))
    with pytest.raises(LoopedError, match="invalid, 1 broken rules: client_in_time"):
        check_valid(result.violations)


def test_a_client_that_is_late_far_above_the_capacity_spoils_nothing(monkeypatch):
    def behaviour(rate):
        return good if rate < 2.5 else crowded if rate < 3.5 else late

    result = search(monkeypatch, behaviour)
    assert not all(run.is_valid for run in result.runs)
    assert result.violations == []
    page = "\n".join(serve_page({}, result))
    assert "INVALID" not in page
    assert "| broken rules | 0 | 0 | 1 |" in page


def test_an_objective_that_nothing_can_meet_ends_the_search(monkeypatch):
    result = search(monkeypatch, lambda rate: slow)
    assert len(result.runs) < 8
    assert "had the server to itself, so that a lower rate would not help" in words(result)
    assert result.to_json({})["is_valid"]
    assert result.to_json({})["capacity"]["rate"] is None


def test_a_server_that_refuses_everything_ends_the_search_as_invalid(monkeypatch):
    result = search(monkeypatch, lambda rate: refused)
    assert len(result.runs) == 1
    assert ": at 1.00 requests/s all requests failed." in words(result)
    with pytest.raises(LoopedError, match="some_request_ends_well"):
        check_valid(result.violations)


def test_the_lowest_rate_ends_the_search(monkeypatch):
    result = search(monkeypatch, lambda rate: crowded, lowest=0.4)
    assert [run.rate for run in result.runs] == [1.0, 0.5]
    assert ": 0.5 requests/s, the lowest rate that was to be tried, is too much." in words(result)


def test_a_server_that_sustains_all_that_is_tried(monkeypatch):
    result = search(monkeypatch, lambda rate: good)
    assert "or more: no rate that was tried is too much" in words(result)


def test_what_is_known_is_told_after_every_run(monkeypatch):
    seen = []
    result = search(monkeypatch, lambda rate: good if rate < 3 else crowded, seen=seen)
    assert [len(partial.runs) for partial in seen] == list(range(1, len(result.runs) + 1))
    assert not any(partial.to_json({})["is_complete"] for partial in seen)
    assert result.to_json({})["is_complete"]


def test_a_search_with_few_requests_is_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"at least 16 requests, .* got 15"):
        search(monkeypatch, lambda rate: good, num_requests=15)


def open_load(**options):
    values = {
        "endpoint": Endpoint(url="http://fake"),
        "prompts": PromptSource(num_requests=40, prompt_tokens=3, output_tokens=2),
        "judgement": JUDGEMENT,
        "rates": [1.0],
        "prompt_seed": 5,
    }
    return OpenLoopLoad(**values | options)


def test_a_script_loads_a_server_and_finds_what_was_done_in_the_folder(monkeypatch, tmp_path):
    played = []

    def measure_load(endpoint, arrivals, *, name, rate, log):
        played.append((name, rate, [len(one.prompt.token_ids) for one in arrivals]))
        return load_run(*good(arrivals), name=name, rate=rate)

    card = {"id": "fake", "max_model_len": 5, "vocab_size": 9}
    monkeypatch.setattr(serve_benchmark, "measure_load", measure_load)
    monkeypatch.setattr(Endpoint, "card", lambda self: card)
    load = open_load(rates=[1.0, 2.0])
    description, result = run_load(load, {"command": "a test"}, tmp_path / "out")
    assert played == [("run0", 1.0, [3] * 40), ("run1", 2.0, [3] * 40)]
    assert result.is_complete
    assert description["command"] == "a test"
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [run["rate"] for run in kept["runs"]] == [1.0, 2.0]
    assert (kept["model"], kept["prompt_seed"], kept["is_complete"]) == ("fake", 5, True)
    card["max_model_len"] = 4
    with pytest.raises(UsageError, match=r"the server takes 4 \(max_model_len\)"):
        run_load(load, {}, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": [0.0]}, "--rate must be above 0"),
        ({"search": CapacitySearch(), "rates": [1.0, 2.0]}, "got 2 rates, an SLO"),
        (
            {"search": CapacitySearch(), "judgement": Judgement(objective=Objective())},
            "got 1 rates, no SLO",
        ),
        ({"search": CapacitySearch(longest_run=9.0)}, "40 s to arrive at --rate 1; raise the rate"),
        ({"search": CapacitySearch(precision=1.0)}, "a precision above 1"),
        (
            {"search": CapacitySearch(), "prompts": PromptSource(num_requests=15)},
            "at least 16 requests",
        ),
    ],
)
def test_a_load_that_makes_no_sense_is_refused_before_the_server_is_asked(options, message):
    with pytest.raises(UsageError, match=message):
        open_load(**options)
