"""The shipped estimate is what its formulas and its data sheet come to."""

import json
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from looped.sched import CostModel, LaunchKind, LaunchWork, read_cost_table

SCRIPT = Path(__file__).parents[2] / "experiments" / "estimate_h200_costs.py"


def test_the_shipped_table_is_computed_from_the_data_sheet(capsys):
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shipped = read_cost_table("ouro-1.4b-h200")
    computed = CostModel.from_json(json.loads(capsys.readouterr().out))
    for field in fields(shipped):
        if field.name.endswith("seconds") or field.name.endswith("floor"):
            ours, theirs = getattr(computed, field.name), getattr(shipped, field.name)
            assert theirs == pytest.approx(ours, rel=1e-9), field.name
    assert computed.overheads == shipped.overheads
    assert (computed.name, computed.source) == (shipped.name, shipped.source)
    assert computed.is_estimate
    assert shipped.is_estimate


def test_the_source_names_what_was_assumed():
    source = read_cost_table("ouro-1.4b-h200").source
    for number in ("4.8 TB/s", "989 TFLOP/s", "70 %", "60 %", "50 %", "30 %", "200 us", "150 us"):
        assert number in source


def test_few_rows_cost_the_weights_and_many_their_flops():
    costs = read_cost_table("ouro-1.4b-h200")
    few, many = (
        costs.seconds(LaunchWork(LaunchKind.RECURRENT, rows, rows, 1, 0, 0)) for rows in (2, 4096)
    )
    weight_bytes = 2 * 24 * (4 * 2048 * 2048 + 3 * 2048 * 5632)
    assert few == pytest.approx(200e-6 + weight_bytes / (0.7 * 4.8e12))
    assert many == pytest.approx(200e-6 + 4096 * weight_bytes / (0.5 * 989e12))
