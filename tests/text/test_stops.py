"""End-of-sequence ids, however a checkpoint's files spell them."""

import json

import pytest

from looped.errors import LoopedError
from looped.text.stop_ids import find_stop_token_ids


def stops_of(tmp_path, **files):
    for name, eos in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"eos_token_id": eos}))
    return find_stop_token_ids(tmp_path, None)


@pytest.mark.parametrize(
    ("value", "expected"), [(None, set()), (0, {0}), ([0, 2], {0, 2}), ([], set())]
)
def test_one_id_several_or_none(tmp_path, value, expected):
    assert stops_of(tmp_path, config=value) == expected


def test_files_that_are_not_there_name_nothing(tmp_path):
    assert find_stop_token_ids(tmp_path, None) == frozenset()


@pytest.mark.parametrize("value", ["two", [1, "2"], True, 2.0, {"id": 2}])
def test_anything_else_is_refused_with_the_file(tmp_path, value):
    with pytest.raises(LoopedError, match=r"generation_config\.json: eos_token_id must be"):
        stops_of(tmp_path, config=0, generation_config=value)
