"""Policies give the same answers to held-out problems, and the command says so."""

import json

import pytest
from command_line import looped
from demo_models import make_demo_model

from looped.demo.problems import QUICK_COUNT, held_out
from looped.errors import UsageError
from looped.evaluation.demo import evaluate_demo
from looped.sched import ExitMode


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_demo_model(tmp_path_factory.mktemp("demo") / "model")
