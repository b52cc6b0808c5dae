"""Examples out of files: each line one, whatever separators its texts hold."""

import json
import random

import pytest
from command_line import looped
from training_runs import write_examples

from looped.training.sources import file_source


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_line_separators_of_unicode_do_not_end_a_line(tiny_folder, tmp_path, separator):
    data = tmp_path / "data.jsonl"
    line = json.dumps({"prompt": f"the{separator}quick", "completion": " fox"}, ensure_ascii=False)
    data.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    source = file_source(data, tiny_folder)
    rng = random.Random(0)
    assert source.draw(rng) == source.draw(rng)


@pytest.mark.parametrize("stage", ["pretrain", "gate"])
def test_a_line_that_is_too_long_is_named_before_anything_is_written(tiny_folder, tmp_path, stage):
    data, out = write_examples(tmp_path / "data.jsonl"), tmp_path / "out"
    with data.open("a") as file:
        file.write(json.dumps({"prompt": "the quick", "completion": " brown fox" * 40}) + "\n")
    folder = ["--model" if stage == "gate" else "--tokenizer", tiny_folder]
    command = ["train", stage, *folder, "--data", data, "--out", out, "--sequence-length", 32]
    done = looped(*command, check=False)
    assert done.returncode == 2
    assert f"{data}, line 10: an example has " in done.stderr
    assert "a row holds 33; raise --sequence-length to " in done.stderr
    assert not out.exists()


def test_a_folder_without_a_tokenizer_is_refused_in_words_of_training(tmp_path):
    data, nowhere = write_examples(tmp_path / "data.jsonl"), tmp_path / "nowhere"
    command = ["train", "pretrain", "--data", data, "--out", tmp_path / "out"]
    done = looped(*command, "--tokenizer", nowhere, check=False)
    assert done.returncode == 2
    assert f"{nowhere} has no tokenizer.json, which --data is encoded with" in done.stderr
    assert not (tmp_path / "out").exists()
