"""Sweeps and comparisons as a script calls them, without a command."""

import json

import pytest
from simulations import COSTS

from looped.errors import UsageError
from looped.simulation.options import SimulationOptions, WorkloadOptions
from looped.simulation.sweeps.capacity import Objective
from looped.simulation.sweeps.comparison import Comparison
from looped.simulation.sweeps.keeper import run_into_folder
from looped.simulation.sweeps.sweep import RateSearch, Sweep, SweptOptions

REQUESTS = WorkloadOptions(requests=16, prompt_tokens="5:40", output_tokens="2:9", rate=20.0)
SCHEDULER = SimulationOptions(max_num_batched_tokens=64, prefill_chunk_size=32, max_num_seqs=4)
SEARCH = RateSearch(objective=Objective.parse(["ttft_p95=0.3"]), start=2.0, precision=1.5)
TWO = ("mixed", "separate")


def columns(row, *names):
    return tuple(row[name] for name in names)


def test_every_combination_is_run_and_told_by_what_is_swept(tmp_path):
    swept = SweptOptions(policy=TWO, rate=(5.0, 50.0), prefill_chunk_size=(8, 32))
    sweep = Sweep(REQUESTS, SCHEDULER, COSTS, swept, num_seeds=2)
    grown = []
    assert sweep.tables == {"runs": [], "points": [], "capacities": []}
    sweep.run(on_growth=lambda: grown.append(len(sweep.tables["points"])))
    assert grown == [(index + 1) // 2 for index in range(16)]
    rows = sweep.tables["points"]
    assert [columns(row, "policy", "prefill_chunk_size", "rate") for row in rows] == [
        (policy, chunk, rate) for policy in TWO for chunk in (8, 32) for rate in (5.0, 50.0)
    ]
    for row in rows:
        assert columns(row, "max_num_seqs", "max_num_batched_tokens", "concurrency") == (
            4,
            64,
            None,
        )
    assert [row["seed"] for row in sweep.tables["runs"]] == [0, 1] * 8


def test_a_search_finds_a_capacity_of_every_policy_and_the_folder_has_it(tmp_path):
    sweep = Sweep(REQUESTS, SCHEDULER, COSTS, SweptOptions(policy=TWO), search=SEARCH)
    run_into_folder(sweep, tmp_path / "out", sweep.facts)
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept == json.loads(json.dumps(sweep.to_json(sweep.facts, is_complete=True)))
    assert [row["policy"] for row in kept["capacities"]] == list(TWO)
    assert kept["objective"] == "ttft_p95=0.3"
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"benchmark.json", "capacities.csv", "result.json", "result.md"}


def test_what_a_comparison_brought_is_kept_when_it_is_ended_early(tmp_path):
    compared = Comparison(REQUESTS, SCHEDULER, COSTS, TWO, num_seeds=2)

    def end_early():
        if len(compared.tables["runs"]) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared.run(on_growth=end_early)
    values = compared.to_json({}, is_complete=False)
    assert values["means"].keys() == set(TWO)
    assert values["paired"]["separate"]["makespan"]["num_pairs"] == 1
    whole = Comparison(REQUESTS, SCHEDULER, COSTS, TWO, num_seeds=2)
    run_into_folder(whole, tmp_path / "out", whole.facts)
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept["paired"]["separate"]["makespan"]["num_pairs"] == 2
    assert whole.tables["runs"][:3] == compared.tables["runs"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SweptOptions(policy=("mixed", "mixed")), "values of --policy that differ"),
        (lambda: SweptOptions(policy=TWO, rate=(1,), concurrency=(1,)), "two kinds of load"),
        (lambda: RateSearch(objective=SEARCH.objective, precision=1.0), "a precision above 1"),
        (lambda: Sweep(REQUESTS, SCHEDULER, COSTS, SweptOptions(policy=TWO)), "loads to sweep"),
        (
            lambda: Sweep(
                REQUESTS,
                SCHEDULER,
                COSTS,
                SweptOptions(policy=TWO, concurrency=(2,)),
                search=SEARCH,
            ),
            "leave out --concurrency",
        ),
        (lambda: Comparison(REQUESTS, SCHEDULER, COSTS, ("a", "a")), "--policy that differ"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(make, message):
    with pytest.raises(UsageError, match=message):
        make()
