"""The demo's examples fit the rows that training asks of its user."""

import random

from command_line import looped

from looped.demo.examples import LONGEST_EXAMPLE, demo_source
from looped.training.batches import check_example


def test_no_example_is_longer_than_the_bound():
    source, rng = demo_source(), random.Random(1)
    drawn = [source.draw(rng) for _ in range(4000)]
    for example in drawn:
        check_example(example, LONGEST_EXAMPLE - 1)
    longest = max(len(example.prompt_ids) + len(example.completion_ids) for example in drawn)
    assert longest >= LONGEST_EXAMPLE - 12


def test_rows_that_are_too_short_are_refused_before_anything_is_written(tmp_path):
    command = ("train", "pretrain", "--task", "demo", "--out", tmp_path / "out")
    done = looped(*command, "--sequence-length", 24, check=False)
    assert (done.returncode, "raise --sequence-length to 99" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()
