"""Workload files: what they say reaches the requests, and what is none is refused."""

import json
from dataclasses import replace

import pytest

from looped.errors import UsageError
from looped.simulation.loads.depths import FullDepth
from looped.simulation.loads.workload import Workload
from looped.simulation.loads.workload_file import read_workload


def come(workload):
    """Its arrivals, all at once."""
    return list(workload.arrivals().due(float("inf")))


def workload(path, **options):
    return Workload(requests=read_workload(path), depths=FullDepth(4), num_planes=4, **options)


def test_a_files_requests_keep_their_times_and_depths(tmp_path):
    path = tmp_path / "load.jsonl"
    lines = [
        {"prompt_tokens": 5, "output_tokens": 3, "arrival_time": 1, "depths": [4, 2, 1]},
        {"prompt_tokens": 6, "output_tokens": 2, "arrival_time": 3.5},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    made = workload(path)
    first, then = come(made)
    assert (first.time, then.time) == (1.0, 3.5)
    assert first.request.exit_rule.trace == (4, 2, 1)
    assert then.request.exit_rule.trace == (4, 4)
    faster = come(replace(made, rate=2.0))
    assert faster[1].time - faster[0].time == pytest.approx(0.5)


def test_prompts_of_a_file_begin_with_as_much_of_one_text_as_it_says(tmp_path):
    path = tmp_path / "load.jsonl"
    one = {"prompt_tokens": 40, "output_tokens": 1}
    lines = [one | {"shared_prefix_tokens": tokens} for tokens in (32, 20, 0)]
    path.write_text("\n".join(map(json.dumps, lines)))
    made = workload(path, rate=1.0)
    most, less, none = (arrival.request.prompt_token_ids for arrival in come(made))
    assert most[:20] == less[:20]
    assert most[20] != less[20]
    assert none[0] != most[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds no request"),
        ("{", "line 1 is no request"),
        ("[]", "line 1 is no request: expected an object"),
        ('{"prompt_tokens": 3}', "output_tokens must be a whole number"),
        ('{"prompt_tokens": 0, "output_tokens": 1}', "prompt_tokens must be"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "arrival_time": -1}', "arrival_time must be"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "arrival_time": 1e300}', "0 to 1e"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "depths": [1.5]}', "depths must be"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "depth": 1}', "expected an object with"),
        ('{"prompt_tokens": 1, "output_tokens": 1, "priority": "x"}', "priority must be"),
        (
            '{"prompt_tokens": 9, "output_tokens": 1, "shared_prefix_tokens": 9}',
            "shared_prefix_tokens must be a whole number of 0 or more, below prompt_tokens; got 9",
        ),
        (
            '{"prompt_tokens": 1, "output_tokens": 1, "arrival_time": 0}\n'
            '{"prompt_tokens": 1, "output_tokens": 1}',
            "either every request has an arrival_time or none",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, complaint):
    path = tmp_path / "load.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_workload(path)


def test_a_file_of_other_bytes_is_refused(tmp_path):
    path = tmp_path / "load.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no text in UTF-8"):
        read_workload(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_workload(tmp_path / "load.jsonl")
