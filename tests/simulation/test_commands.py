"""`looped simulate compare, sweep, fit, replay`, as they are typed."""

import csv
import json
from dataclasses import replace

import pytest
from command_line import looped
from simulations import COSTS, simulated_events

from looped.engine.events import LaunchEvent
from looped.record.launch_log import write_launch_log
from looped.sched import LaunchKind, read_cost_table, wavefront_policy
from looped.simulation.report import sweep_page
from looped.simulation.sweeps.grid import Grid

LOAD = ("--requests", 6, "--prompt-tokens", "5:40", "--output-tokens", "2:9")
TWO = ("--policy", "mixed", "--policy", "separate")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS.to_json()))
    return path


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "run.jsonl"
    write_launch_log(path, simulated_events(), {})
    return path


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def compare(table, *arguments, **options):
    return looped("simulate", "compare", "--costs", table, *LOAD, *arguments, **options)


def sweep(table, out, *arguments, **options):
    where = ("--costs", table, "--out", out)
    return looped("simulate", "sweep", *where, *LOAD, *arguments, **options)


def test_a_comparison_pairs_its_seeds(table, tmp_path):
    out = tmp_path / "results"
    done = compare(table, *TWO, "--rate", 30, "--seeds", 3, "--out", out, "--json")
    values = json.loads(done.stdout)
    assert values == json.loads((out / "result.json").read_text())
    assert values["baseline"] == "mixed"
    launches = values["paired"]["separate"]["launches"]
    assert launches["num_pairs"] == 3
    assert launches["difference"]["mean"] > 0
    assert launches["ratio"]["low"] <= launches["ratio"]["mean"] <= launches["ratio"]["high"]
    assert len(rows_of(out / "runs.csv")) == 6
    assert "Change against mixed" in (out / "result.md").read_text()


def test_the_same_policy_twice_is_no_comparison(table):
    done = compare(table, "--policy", "mixed", "--policy", "mixed", "--rate", 3, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_results_are_not_overwritten(table, tmp_path):
    for command in (compare, lambda table, *rest, **options: sweep(table, *rest[1:], **options)):
        done = command(table, "--out", tmp_path, *TWO, "--rate", 3, check=False)
        assert done.returncode == 2
        assert "exists; choose another name" in done.stderr


def test_a_sweep_has_every_combination(table, tmp_path):
    out = tmp_path / "results"
    grid = ("--rate", 5, "--rate", 20, "--prefill-chunk-size", 8, "--prefill-chunk-size", 32)
    done = sweep(table, out, *TWO, *grid, "--seeds", 2)
    points = rows_of(out / "points.csv")
    assert len(points) == 8
    assert {(one["policy"], one["rate"], one["prefill_chunk_size"]) for one in points} == {
        (policy, rate, chunk)
        for policy in ("mixed", "separate")
        for rate in ("5.0", "20.0")
        for chunk in ("8", "32")
    }
    assert len(rows_of(out / "runs.csv")) == 16
    assert "| policy | rate | prefill chunk size |" in done.stdout
    assert (out / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "result.json").read_text())["is_complete"]


def test_a_sweep_searches_capacities(table, tmp_path):
    out = tmp_path / "results"
    search = ("--slo", "ttft_p95=0.3", "--start-rate", 2, "--precision", 1.5, "--seeds", 1)
    search += ("--requests", 16)
    alone = ("--max-num-seqs", 1)
    values = json.loads(sweep(table, out, *TWO, *search, *alone, "--json").stdout)
    assert values["points"] == []
    for found in values["capacities"]:
        assert 1 < found["failed_rate"] / found["capacity"] <= 1.5
        assert set(found["failed_by"].split(", ")) <= {"backlog", "ttft_p95"}
        assert found["is_above_full_house"] == (found["capacity"] > found["full_house_rate"])
    assert len(rows_of(out / "capacities.csv")) == 2


@pytest.mark.long
def test_a_capacity_above_what_can_be_done_is_marked(tmp_path):
    search = ("--slo", "ttft_p95=60", "--start-rate", 20, "--precision", 1.1, "--seeds", 1)
    load = ("--requests", 60, "--prompt-tokens", 128, "--output-tokens", 64)
    where = ("--costs", "demo-cpu", "--policy", "mixed", "--out", tmp_path / "few")
    done = looped("simulate", "sweep", *where, *search, *load)
    few = json.loads((tmp_path / "few" / "result.json").read_text())["capacities"]
    above = [one for one in few if one["is_above_full_house"]]
    assert above
    marks = done.stdout.count("the run is too short to see the queue grow; more --requests")
    assert marks == len(above)


def test_a_sweep_plays_a_log_as_its_requests_came(table, log, tmp_path):
    out = tmp_path / "results"
    where = ("--costs", table, "--out", out, "--from-log", log)
    sizes = ("--max-num-seqs", 2, "--max-num-seqs", 8)
    done = looped("simulate", "sweep", *where, *TWO, *sizes, "--json")
    points = json.loads(done.stdout)["points"]
    assert {(one["policy"], one["max_num_seqs"], one["rate"]) for one in points} == {
        (policy, size, None) for policy in ("mixed", "separate") for size in (2, 8)
    }
    assert "--from-log takes requests alone; the log's engine had max_num_seqs 4, here 2, 8" in (
        done.stderr
    )


def test_requests_without_times_need_a_load_to_sweep(table, tmp_path):
    load = tmp_path / "load.jsonl"
    load.write_text('{"prompt_tokens": 9, "output_tokens": 2}')
    where = ("--costs", table, "--out", tmp_path / "results", "--workload", load)
    done = looped("simulate", "sweep", *where, *TWO, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "expected a rate, or a concurrency, for requests without arrival_time" in done.stderr


def test_results_say_the_scheduler_that_was_derived(table, tmp_path):
    out = tmp_path / "results"
    budgets = ("--max-num-batched-tokens", 32, "--max-num-batched-tokens", 256)
    done = sweep(table, out, "--policy", "mixed", *budgets, "--rate", 9, "--seeds", 1)
    for name in ("points.csv", "runs.csv"):
        assert [one["prefill_chunk_size"] for one in rows_of(out / name)] == ["17", "128"]
    assert "| policy | max num batched tokens | prefill chunk size |" in done.stdout
    values = json.loads((out / "result.json").read_text())
    assert [one["prefill_chunk_size"] for one in values["schedulers"]] == [17, 128]
    assert values["schedulers"][0]["max_decode_rows"] == 16
    assert {"looped", "date"} <= values.keys()
    compare(table, *TWO, "--rate", 9, "--seeds", 1, "--out", tmp_path / "compared")
    compared = json.loads((tmp_path / "compared" / "result.json").read_text())
    assert [one["policy"] for one in compared["schedulers"]] == ["mixed", "separate"]
    assert rows_of(tmp_path / "compared" / "runs.csv")[0]["prefill_chunk_size"] == "128"


def test_the_budget_of_many_slots_is_the_engines(table, tmp_path):
    out = tmp_path / "results"
    slots = ("--max-num-seqs", 16, "--max-num-seqs", 256)
    done = sweep(table, out, "--policy", "mixed", *slots, "--rate", 9, "--seeds", 1)
    rows = rows_of(out / "points.csv")
    assert [one["max_num_batched_tokens"] for one in rows] == ["256", "512"]
    assert [one["prefill_chunk_size"] for one in rows] == ["128", "128"]
    assert "prefill_chunk_size is" not in done.stderr
    small = ("--max-num-batched-tokens", 16, "--seeds", 1, "--rate", 9)
    for name in ("compare", "sweep"):
        where = ("--costs", table, *LOAD, "--out", tmp_path / name)
        done = looped("simulate", name, *where, *TWO, *small)
        assert done.stderr.count("prefill_chunk_size is 1, all that") == 1
        assert "try --max-num-batched-tokens" in done.stderr


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_a_deterministic_engine_is_simulated_as_one(table, tmp_path, command):
    load = ("--costs", table, *LOAD, "--policy", "mixed", "--policy", "atomic", "--rate", 9)
    load += ("--seeds", 1, "--max-num-batched-tokens", 64, "--prefill-chunk-size", 32)
    rows = {}
    for name, flags in (("plain", ()), ("deterministic", ("--deterministic",))):
        out = tmp_path / name
        looped("simulate", command, *load, *flags, "--out", out)
        rows[name] = rows_of(out / "runs.csv")
        assert json.loads((out / "result.json").read_text())["deterministic"] == bool(flags)
    for plain, padded in zip(rows["plain"], rows["deterministic"], strict=True):
        assert float(padded["real_rows"]) < float(plain["real_rows"])
        assert float(padded["makespan"]) > float(plain["makespan"])


def test_a_form_of_a_comparisons_table_needs_a_folder(table, monkeypatch):
    done = compare(table, *TWO, "--rate", 9, "--format", "xlsx", check=False)
    assert (done.returncode, "csv, parquet" in done.stderr) == (2, True)
    monkeypatch.setattr("looped.simulation.table_files.find_spec", lambda name: True)
    done = compare(table, *TWO, "--rate", 9, "--format", "parquet", check=False)
    assert (done.returncode, "add --out DIR" in done.stderr) == (2, True)


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_tables_as_parquet_have_the_rows_of_those_as_csv(table, tmp_path, command):
    parquet = pytest.importorskip("pyarrow.parquet", reason="tables as Parquet need pyarrow")
    slack = f"slack:target=0.02,costs={table}"
    load = ("--costs", table, *LOAD, "--policy", "mixed", "--policy", slack, "--rate", 9)
    for form in ("csv", "parquet"):
        looped("simulate", command, *load, "--seeds", 2, "--format", form, "--out", tmp_path / form)
    names = {"compare": ["runs"], "sweep": ["runs", "points"]}[command]
    for name in names:
        rows = parquet.read_table(tmp_path / "parquet" / f"{name}.parquet").to_pylist()
        told = [
            {key: "" if value is None else str(value) for key, value in row.items()} for row in rows
        ]
        assert told == rows_of(tmp_path / "csv" / f"{name}.csv")
        assert not list((tmp_path / "parquet").glob("*.csv"))


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_what_was_simulated_is_kept_if_it_ends_early(table, tmp_path, monkeypatch, command):
    out, run = tmp_path / "results", Grid.run

    def interrupted(grid, point, seed):
        if (point.policy, seed) == ("separate", 1):
            raise KeyboardInterrupt
        return run(grid, point, seed)

    monkeypatch.setattr(Grid, "run", interrupted)
    load = ("--costs", table, *LOAD, *TWO, "--rate", 9, "--seeds", 2)
    assert looped("simulate", command, *load, "--out", out, check=False).returncode == 130
    assert [row["policy"] for row in rows_of(out / "runs.csv")] == ["mixed", "mixed", "separate"]
    assert not json.loads((out / "result.json").read_text())["is_complete"]
    assert "INCOMPLETE" in (out / "result.md").read_text()


def test_a_search_that_finds_no_bound_says_so():
    found = [("a", 8.0, None), ("b", None, 1.0)]
    rows = [dict(zip(("policy", "capacity", "failed_rate"), one, strict=True)) for one in found]
    page = sweep_page({}, COSTS, rows)
    assert "| a | 8.00 | not bounded |" in page
    assert "| b | - | 1.00 |" in page


def test_runs_that_would_be_copies_have_no_interval(table, tmp_path):
    full = ("--concurrency", 2, "--exits", "full", "--requests", 4, "--prompt-tokens", 9)
    full += ("--output-tokens", 3, "--seeds", 5, "--json")
    done = looped("simulate", "compare", "--costs", table, *TWO, *full)
    values = json.loads(done.stdout)
    assert values["seeds"] == 1
    launches = values["paired"]["separate"]["launches"]
    assert launches["num_pairs"] == 1
    assert launches["difference"]["low"] is None
    assert "runs once instead of 5 times" in done.stderr


def test_several_seeds_are_means_of_their_percentiles(table):
    assert "a percentile is one run's" in compare(table, *TWO, "--rate", 9).stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--slo", "ttft_p95=1"), "a capacity needs at least 16 requests"),
        (("--rate", 1, "--slo", "itl_p99=1"), "itl_p99 needs at least 1,000 gaps"),
        ((), "expected loads to sweep"),
        (("--rate", 1, "--concurrency", 1), "two kinds of load"),
        (("--slo", "ttft_p95=1", "--concurrency", 1), "leave out --concurrency"),
        (("--rate", 1, "--rate", 1e-300), "from 1e-06 to 1e+09 requests per second"),
        (("--slo", "ttft_p95=1", "--requests", 16, "--start-rate", 1e300), "expected a rate above"),
        (("--rate", 1, "--slo", "ttft_p95=1", "--start-rate", 1e300), "expected a rate above"),
        (("--slo", "ttft=1"), "an objective is"),
        (("--slo", "itl_p99=-1"), "above 0 seconds"),
        (("--slo", "ttft_p95=1", "--slo", "ttft_p95=2"), "one bound of ttft_p95"),
        (("--rate", 1, "--start-rate", 2), "--start-rate is about the search of an --slo"),
        (("--rate", 1, "--precision", 1.1), "--precision is about the search of an --slo"),
        (("--rate", 1, "--policy", "mixed"), "expected values of --policy that differ"),
        (("--rate", 1, "--rate", 2, "--rate", "1.0"), "values of --rate that differ, got 1.0, 2"),
        (("--rate", 1, "--max-num-seqs", 4, "--max-num-seqs", 4), "of --max-num-seqs that differ"),
        (("--slo", "ttft_p95=1", "--precision", 1.0), "a precision"),
        (("--rate", 1, "--format", "xlsx"), "csv, parquet"),
        (
            ("--rate", 1, "--max-num-seqs", 999, "--max-num-batched-tokens", 256),
            "256 < 999; try --max-num-batched-tokens",
        ),
        (("--rate", 1, "--shared-prefix-tokens", 5), "below the shortest prompt"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_one_line(table, tmp_path, arguments, complaint):
    done = sweep(table, tmp_path / "results", *TWO, *arguments, check=False)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_an_estimate_is_called_one(tmp_path):
    shipped = "ouro-1.4b-h200"
    assert "**ESTIMATE**" in compare(shipped, *TWO, "--rate", 9, "--seeds", 1).stdout
    out = tmp_path / "results"
    assert "**ESTIMATE**" in sweep(shipped, out, *TWO, "--rate", 9, "--seeds", 1).stdout
    assert "**ESTIMATE**" in (out / "result.md").read_text()


@pytest.fixture
def narrow(tmp_path):
    """A table that was fitted to launches of few sizes."""
    overheads = {LaunchKind.RECURRENT: {64: 0.0}, LaunchKind.HEAD: {4: 0.0}}
    path = tmp_path / "narrow.json"
    path.write_text(json.dumps(replace(COSTS, name="narrow", overheads=overheads).to_json()))
    return path


def test_launches_that_a_table_does_not_name_are_told_of(narrow, tmp_path):
    told = "launches of a run are of sizes that cost table narrow does not name"
    load = ("--rate", 9, "--seeds", 1)
    run = ("simulate", "run", "--costs", narrow, *LOAD, "--rate", 9)
    assert "**CAUTION**: " in looped(*run).stdout
    assert 5 < json.loads(looped(*run, "--json").stdout)["numbers"]["unnamed_launches"] <= 100
    out = tmp_path / "compared"
    assert told in compare(narrow, *TWO, *load, "--out", out).stdout
    assert float(rows_of(out / "runs.csv")[0]["unnamed_launches"]) > 5
    assert told in sweep(narrow, tmp_path / "swept", *TWO, *load).stdout
    assert told in (tmp_path / "swept" / "result.md").read_text()
    search = ("--slo", "ttft_p95=0.3", "--start-rate", 2, "--precision", 1.5, "--seeds", 1)
    only = sweep(narrow, tmp_path / "searched", *TWO, *search, "--requests", 16)
    assert told in only.stdout


def test_a_fit_that_is_bad_says_so_and_every_fit_lists_its_buckets(log, tmp_path, monkeypatch):
    done = looped("simulate", "fit", log, "--out", tmp_path / "good.json")
    assert "rows of the buckets in the log (launches): recurrent " in done.stdout
    assert "R2" not in done.stderr
    monkeypatch.setattr("looped.simulation.fitting.fit.LEAST_R_SQUARED", 1.5)
    done = looped("simulate", "fit", log, "--out", tmp_path / "bad.json")
    assert "below 1.5: the table hardly predicts its own log; log a longer run" in done.stderr


def test_a_fit_writes_a_table_and_says_how_good_it_is(log, tmp_path):
    out = tmp_path / "fitted.json"
    values = json.loads(looped("simulate", "fit", log, "--out", out, "--json").stdout)
    assert values["r_squared"] > 0.9
    assert values["num_held_out"] > 10
    costs = read_cost_table(out)
    assert costs.name == "fitted"
    assert "simulate fit" in costs.source
    again = looped("simulate", "fit", log, "--out", out, check=False)
    assert (again.returncode, "exists; choose another name" in again.stderr) == (2, True)
    page = looped("simulate", "fit", log, "--out", tmp_path / "other.json", "--name", "b").stdout
    assert "held out: R2" in page


def test_a_table_has_the_form_of_one(log, tmp_path):
    done = looped("simulate", "fit", log, "--out", tmp_path / "table.txt", check=False)
    assert (done.returncode, "must end in .json" in done.stderr) == (2, True)


@pytest.mark.parametrize("waits", [(), ("--launch-log-waits",)])
def test_a_fit_of_a_simulated_log_finds_its_costs(table, tmp_path, waits):
    log, out = tmp_path / "run.jsonl", tmp_path / "again.json"
    load = ("--requests", 40, "--prompt-tokens", "5:90", "--rate", 20)
    looped("simulate", "run", "--costs", table, *load, "--launch-log", log, *waits)
    values = json.loads(looped("simulate", "fit", log, "--out", out, "--json").stdout)
    assert values["mape"] < 0.02
    assert read_cost_table(out).weight_floor == pytest.approx(COSTS.weight_floor, rel=0.05)


def test_the_folder_of_a_table_is_there_before_the_fit(log, tmp_path):
    done = looped("simulate", "fit", log, "--out", tmp_path / "none" / "x.json", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "none is not a folder" in done.stderr


def test_a_replay_takes_the_policy_that_a_log_cannot_name(tmp_path):
    path = tmp_path / "run.jsonl"
    events = simulated_events(policy=wavefront_policy(2), prefill_chunk_size=8)
    write_launch_log(path, events, {})
    done = looped("simulate", "replay", path, check=False)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (1, 1, "")
    assert "got an object that calls itself 'wavefront'" in done.stderr
    assert "--policy NAME:KEY=VALUE" in done.stderr
    assert looped("simulate", "replay", path, "--policy", "wavefront:window=2").returncode == 0
    done = looped("simulate", "replay", path, "--policy", "absent", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_all_lines_of_a_cut_log_are_compared(table, tmp_path):
    path, cut = tmp_path / "run.jsonl", tmp_path / "cut.jsonl"
    looped("simulate", "run", "--costs", table, *LOAD, "--rate", 50, "--exit-mode", "ouro",
           "--run-ahead", 2, "--launch-log", path)  # fmt: skip
    lines = path.read_text().splitlines(keepends=True)
    for count in range(20, 44, 3):
        cut.write_text("".join(lines[:count]))
        values = json.loads(looped("simulate", "replay", cut, "--json").stdout)
        (engine,) = values["engines"]
        assert engine["difference"] is None
        assert engine["num_launches"] == sum('"type":"launch"' in line for line in lines[:count])


def test_a_replay_says_how_far_it_came_and_under_which_policy(log):
    told = looped("simulate", "replay", log).stdout
    assert "engine 0 (mixed): " in told
    assert "launches the same" in told
    under = ("--policy", "atomic")
    told = looped("simulate", "replay", log, *under, check=False).stdout
    assert "engine 0 (mixed, replayed under atomic): " in told
    values = looped("simulate", "replay", log, *under, "--json", check=False).stdout
    (engine,) = json.loads(values)["engines"]
    assert (engine["policy"], engine["replayed_under"]) == ("mixed", "atomic")


def test_a_replay_is_of_one_policy(log):
    done = looped("simulate", "replay", log, *TWO, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "got 2: mixed, separate; replay the log once for each" in done.stderr


def test_a_replay_that_differs_exits_with_one(tmp_path):
    events = simulated_events()
    index = next(i for i, event in enumerate(events) if isinstance(event, LaunchEvent))
    record = events[index].record
    first = replace(record.items[0], slot=record.items[0].slot + 1)
    events[index] = replace(events[index], record=replace(record, items=(first, *record.items[1:])))
    path = tmp_path / "changed.jsonl"
    write_launch_log(path, events, {})
    done = looped("simulate", "replay", path, "--json", check=False)
    assert done.returncode == 1
    assert "launch 0, item 0" in json.loads(done.stdout)["engines"][0]["difference"]
    assert "differs from the log" in done.stderr
