"""Cost models: the formula, what stands in for what was not measured, and the JSON form."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from looped.sched import ConfigError, CostModel, LaunchKind, LaunchWork, read_cost_table
from looped.sched.costing.cost_model import cost_table_names

MODEL = CostModel(
    name="made-up",
    source="a test",
    num_planes=4,
    weight_floor=8.0,
    row_seconds=1.0,
    decode_key_seconds=0.5,
    prompt_key_seconds=0.25,
    head_floor=4.0,
    head_row_seconds=2.0,
    overheads={LaunchKind.RECURRENT: {2: 10.0, 4: 20.0, 16: 80.0}, LaunchKind.HEAD: {2: 3.0}},
    head_factors={"copies": 1.5, "sampled": 2.0, "ranked_copies": 7.0},
    host_launch_seconds=7.0,
    host_item_seconds=0.5,
    host_row_seconds=0.25,
    host_call_seconds=0.75,
    host_call_row_seconds=0.125,
)


def work(kind: LaunchKind = LaunchKind.RECURRENT, form: str = "", **numbers: int) -> LaunchWork:
    values = {"bucket": 2, "num_rows": 1, "num_passes": 1, "decode_keys": 0, "prompt_keys": 0}
    return LaunchWork(kind, form=form, **(values | numbers))


def test_a_pass_costs_its_floor_or_the_rows_of_its_bucket_and_its_keys() -> None:
    assert MODEL.seconds(work()) == 10 + 8
    assert MODEL.seconds(work(bucket=16, num_rows=9)) == 80 + 16
    assert MODEL.seconds(work(decode_keys=6, prompt_keys=4)) == 10 + 8 + 3 + 1


def test_every_pass_of_a_launch_costs_the_same_and_the_overhead_is_paid_once() -> None:
    launch = work(LaunchKind.PREFILL, num_passes=4, prompt_keys=4)
    assert MODEL.seconds(launch) == 10 + 4 * (8 + 1)


def test_every_call_of_a_launch_pays_the_overhead() -> None:
    launch = work(num_passes=4, num_calls=4, prompt_keys=4)
    assert MODEL.seconds(launch) == 4 * (10 + 8 + 1)


def test_an_lm_head_has_a_floor_and_a_slope_of_its_own() -> None:
    assert MODEL.seconds(work(LaunchKind.HEAD, num_passes=0)) == 3 + 4
    assert MODEL.seconds(work(LaunchKind.HEAD, num_passes=0, bucket=8)) == 3 + 16
    assert MODEL.seconds(work(LaunchKind.SCORE, num_passes=0, bucket=8)) == 3 + 16


@pytest.mark.parametrize(
    ("form", "factor"),
    [
        ("", 1.0),
        ("greedy", 1.0),
        ("conditional", 1.0),
        ("greedy_copies", 1.5),
        ("sampled", 2.0),
        ("sampled_copies", 3.0),
        ("ranked", 1.0),
        ("ranked_copies", 7.0),
    ],
)
def test_a_head_costs_by_its_form_or_the_parts_of_it_else_like_greedy(
    form: str, factor: float
) -> None:
    assert MODEL.seconds(work(LaunchKind.HEAD, form, num_passes=0)) == factor * (3 + 4)
    assert replace(MODEL, head_factors={}).seconds(work(LaunchKind.HEAD, form, num_passes=0)) == 7


@pytest.mark.parametrize(
    ("bucket", "overhead"), [(1, 10), (2, 10), (3, 15), (4, 20), (10, 50), (16, 80), (512, 80)]
)
def test_an_unknown_bucket_lies_between_its_neighbours_or_with_the_nearest(
    bucket: int, overhead: float
) -> None:
    assert MODEL.overhead(LaunchKind.RECURRENT, bucket) == overhead
    assert MODEL.overhead(LaunchKind.PREFILL, bucket) == overhead


def test_a_table_without_overheads_has_none() -> None:
    assert replace(MODEL, overheads={}).seconds(work()) == 8


def test_the_host_is_busy_for_a_launch_its_items_and_its_rows() -> None:
    assert MODEL.host_seconds(6, 8) == 12
    assert MODEL.host_seconds(6, 8, num_calls=3) == 7 + 3 * 5
    assert MODEL.call_seconds(8) == 1.75


def test_json_brings_back_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(MODEL.to_json()))
    assert read_cost_table(path) == MODEL
    assert read_cost_table(str(path)) == MODEL


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": 1}, "made-up: expected schema 2, got 1; tables of schema 1 price the LM head"),
        ({"schema": 3}, "expected schema 2, got 3"),
        ({"head_factors": {"copies": -1.0}}, "head factor of copies must be 0 or more, got -1.0"),
        ({"head_factors": [1.0]}, "head_factors must be {form: factor}"),
        ({"row_seconds": -1.0}, "row_seconds must be 0 or more seconds, got -1.0"),
        ({"row_seconds": float("nan")}, "row_seconds must be 0 or more"),
        ({"row_seconds": "1"}, "row_seconds must be 0 or more"),
        ({"num_planes": 0}, "num_planes must be at least 1"),
        ({"num_planes": "4"}, "num_planes must be at least 1, got '4'"),
        ({"rows": 1}, r"unknown names \['rows'\]$"),
        ({"overheads": {"embed": {"2": 1.0}}}, "overheads must be"),
        ({"overheads": {"head": {"two": 1.0}}}, "overheads must be"),
        ({"overheads": {"head": {"2": -1.0}}}, "overhead of HEAD 2 must be 0 or more"),
        ({"overheads": {"head": {"0": 1.0}}}, "buckets must be at least 1 row"),
    ],
)
def test_a_damaged_table_is_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        CostModel.from_json(MODEL.to_json() | change)


def test_a_missing_number_is_named() -> None:
    values = MODEL.to_json()
    del values["head_floor"]
    with pytest.raises(ConfigError, match=r"cost table: missing names \['head_floor'\]"):
        CostModel.from_json(values)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    for change, complaint in (
        ({"rows": 1}, r"cost table: unknown names \['rows'\]$"),
        ({"row_seconds": -1.0}, f"cost table {MODEL.name}: row_seconds must be"),
    ):
        path.write_text(json.dumps(MODEL.to_json() | change))
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: {complaint}"):
            read_cost_table(path)


def test_a_table_that_is_nowhere_is_refused_with_the_names_of_those_that_are(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"one of .*ouro-1\.4b-h200.*; got 'nothing'"):
        read_cost_table("nothing")
    with pytest.raises(ConfigError, match="no such file"):
        read_cost_table(tmp_path / "table.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_cost_table(tmp_path / "list.json")


@pytest.mark.parametrize("name", cost_table_names())
def test_every_shipped_table_reads_and_goes_by_its_name(name: str) -> None:
    table = read_cost_table(name)
    assert table.name == name
    assert table.seconds(work(bucket=16)) > 0
    assert table.is_estimate == (name == "ouro-1.4b-h200")
