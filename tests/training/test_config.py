"""Options of runs are numbers in their ranges, or refused when they are built."""

import math
from dataclasses import fields

import pytest

from looped.errors import UsageError
from looped.training.config import GateConfig, LookaheadConfig, PretrainConfig

STAGES = (PretrainConfig, GateConfig, LookaheadConfig)
FLOATS = [
    (stage, field.name)
    for stage in STAGES
    for field in fields(stage)
    if field.type in ("float", float)
]


@pytest.mark.parametrize(("stage", "name"), FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1])
def test_no_option_is_no_number_or_endless_or_negative(stage, name, value):
    with pytest.raises(UsageError, match=f"{name} must be"):
        stage(**{name: value})


@pytest.mark.parametrize(
    ("stage", "option"),
    [
        (PretrainConfig, {"final_learning_rate": 1.01}),
        (PretrainConfig, {"exit_share": 1.0}),
        (GateConfig, {"slope": 0.0}),
        (LookaheadConfig, {"learning_rate": 0.0}),
        (PretrainConfig, {"seed": -1}),
        (PretrainConfig, {"seed": 2**32}),
    ],
)
def test_an_option_outside_its_range_is_refused(stage, option):
    (name,) = option
    with pytest.raises(UsageError, match=f"{name} must be"):
        stage(**option)
