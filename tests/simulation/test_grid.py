"""Many runs: common seeds, workers, capacities, tables, pictures."""

import csv
from dataclasses import replace

import pytest
from simulations import COSTS, PLAN, SMALL

from looped.errors import UsageError
from looped.plots.pareto import draw_pareto, front
from looped.sched import policy_named
from looped.simulation.sweeps.capacity import Objective, capacity_of, full_house_rate
from looped.simulation.sweeps.grid import Grid, Point, mean_numbers, run_grid
from looped.simulation.table_files import check_format, write_table

GRID = Grid(PLAN, COSTS, range(2))
POINTS = [Point(policy, SMALL, rate) for policy in ("mixed", "separate") for rate in (5.0, 50.0)]


def test_points_run_on_every_seed_in_order():
    results = run_grid(GRID, POINTS)
    assert [len(own) for own in results] == [2, 2, 2, 2]
    assert results[0][0] == GRID.run(POINTS[0], 0)
    assert results[3][1] == GRID.run(POINTS[3], 1)
    assert results[0][0] != results[0][1]
    means = mean_numbers(results[0])
    first, second = (own["itl_p50"] for own in results[0])
    assert means["itl_p50"] == pytest.approx((first + second) / 2)
    assert means["itl_p99"] is None


def test_workers_come_to_the_same_numbers():
    assert run_grid(GRID, POINTS[:2], num_processes=2) == run_grid(GRID, POINTS[:2])


def test_a_point_that_cannot_run_is_refused_before_any_runs():
    wrong = Point("mixed", SMALL | {"prefill_chunk_size": 64}, 5.0)
    with pytest.raises(UsageError, match="prefill_chunk_size"):
        run_grid(GRID, [POINTS[0], wrong])


def test_a_policy_is_an_object_or_a_name():
    mine = replace(policy_named("separate"), name="mine")
    named, given = (Point(policy, SMALL, 50.0) for policy in ("separate", mine))
    assert GRID.run(named, 0) == GRID.run(given, 0) != GRID.run(POINTS[1], 0)
    assert given.columns == named.columns | {"policy": "mine"}


def test_a_full_house_does_more_than_a_quiet_one():
    grid = replace(GRID, plan=replace(PLAN, rate=None))
    rates = [
        full_house_rate(grid, Point("mixed", SMALL | {"max_num_seqs": size})) for size in (1, 2, 4)
    ]
    assert rates == sorted(rates)
    numbers = [grid.run(Point("mixed", SMALL, concurrency=4), seed) for seed in grid.seeds]
    assert rates[2] == mean_numbers(numbers)["requests_per_second"]


def test_a_closed_loop_is_a_load_too():
    grid = replace(GRID, plan=replace(PLAN, rate=None, concurrency=1))
    one, four = (
        grid.run(Point("mixed", SMALL, concurrency=concurrency), 0) for concurrency in (1, 4)
    )
    assert four["output_tokens_per_second"] > 2 * one["output_tokens_per_second"]


def test_the_capacity_is_where_the_objective_breaks():
    objective = Objective.parse(["ttft_p95=0.5", "itl_p95=0.2"])
    capacity = capacity_of(GRID, Point("mixed", SMALL), objective, start=4.0, precision=1.2)
    assert capacity.failed_rate / capacity.rate <= 1.2
    rates = {rate: trial.numbers for rate, trial in capacity.trials}
    assert not objective.failed(rates[capacity.rate])
    assert rates[capacity.failed_rate]["ttft_p95"] > 0.5


@pytest.mark.long
def test_a_rate_that_is_not_kept_up_with_is_no_capacity():
    # Few requests at once: their gaps are what they are at any rate.
    grid = replace(GRID, plan=replace(PLAN, num_requests=64))
    search = {"start": 4.0, "precision": 1.3}
    found = capacity_of(grid, Point("mixed", SMALL), Objective.parse(["itl_p95=9"]), **search)
    assert found.failed_rate is not None
    trials = dict(found.trials)
    assert trials[found.rate].is_bounded
    assert not trials[found.failed_rate].is_bounded
    assert trials[found.failed_rate].failed_by == ("backlog",)
    most = full_house_rate(replace(grid, plan=replace(grid.plan, rate=None)), Point("mixed", SMALL))
    assert 0.7 * most < found.rate < 1.3 * most


@pytest.mark.parametrize(
    ("text", "num_requests", "complaint"),
    [
        ("itl_p99=1", 20, r"itl_p99 needs at least 1,000 gaps in every run, got \d+"),
        ("ttft_p99=1", 200, "ttft_p99 needs at least 1,000 requests in every run, got 200"),
        ("ttft_p50=1", 15, "a capacity needs at least 16 requests"),
    ],
)
def test_an_objective_that_a_workload_is_too_small_for_is_refused(text, num_requests, complaint):
    workload = replace(PLAN, num_requests=num_requests).workload(0)
    with pytest.raises(UsageError, match=complaint):
        Objective.parse([text]).check(workload)


def test_an_objective_suits_a_workload_that_is_large_enough():
    workload = replace(PLAN, num_requests=1000).workload(0)
    Objective.parse(["itl_p99=1", "ttft_p99=1", "latency_p95=1"]).check(workload)


def test_runs_are_told_in_order():
    told = []
    numbers = run_grid(GRID, POINTS[:2], on_run=lambda *run: told.append(run))
    assert [(point, seed) for point, seed, _ in told] == [
        (point, seed) for point in POINTS[:2] for seed in (0, 1)
    ]
    assert [own for _, _, own in told] == [own for two in numbers for own in two]


@pytest.mark.parametrize("text", ["itl_p99", "itl_p99=0", "itl_p99=x", "makespans=1", "rows=1"])
def test_an_objective_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match=r"an objective is NUMBER=SECONDS"):
        Objective.parse([text])


def test_an_objective_needs_enough_values():
    with pytest.raises(UsageError, match=r"itl_p99 needs at least 1,000 values"):
        Objective.parse(["itl_p99=1"]).failed(GRID.run(POINTS[0], 0))


def test_tables_keep_their_rows(tmp_path):
    path = tmp_path / "rows.csv"
    write_table(path, [{"policy": "mixed", "rate": 1.5}, {"policy": "a,b", "rate": None}])
    with path.open() as file:
        assert list(csv.DictReader(file)) == [
            {"policy": "mixed", "rate": "1.5"},
            {"policy": "a,b", "rate": ""},
        ]
    assert [one.name for one in tmp_path.iterdir()] == ["rows.csv"]


def test_tables_as_parquet_are_read_back_as_they_were(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="tables as Parquet need pyarrow")
    rows = [
        {"policy": "mixed", "rate": 1, "p99": None, "chunk": None, "cached": True, "n": 3},
        {
            "policy": "slack:target=1,costs=a",
            "rate": 2.5,
            "p99": None,
            "chunk": 64,
            "cached": None,
            "n": 4,
        },
    ]
    path = tmp_path / "rows.parquet"
    write_table(path, rows)
    table = parquet.read_table(path)
    assert table.to_pylist() == rows
    assert {str(table.schema.field(name).type) for name in ("rate", "p99")} == {"double"}
    assert [one.name for one in tmp_path.iterdir()] == ["rows.parquet"]


def test_a_form_that_there_is_not_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="csv, parquet; got 'xlsx'"):
        check_format("xlsx")
    monkeypatch.setattr("looped.simulation.table_files.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="need pyarrow"):
        check_format("parquet")
    check_format("csv")


def test_the_front_is_what_nothing_beats():
    places = [(1.0, 5.0), (2.0, 5.0), (3.0, 7.0), (2.5, 8.0), (3.0, 9.0), (1.0, 1.0)]
    assert front(places) == [(1.0, 1.0), (2.0, 5.0), (3.0, 7.0)]
    assert front([]) == []


def test_a_pareto_picture_is_drawn(tmp_path):
    path = tmp_path / "pareto.png"
    draw_pareto(path, {"a": [(1.0, 0.1)], "b": []}, title="title", latency_name="p99")
    assert path.read_bytes().startswith(b"\x89PNG")
