"""Examples out of files: each line one, whatever separators its texts hold."""

import json
import random

import pytest

from looped.training.sources import file_source


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_line_separators_of_unicode_do_not_end_a_line(tiny_folder, tmp_path, separator):
    data = tmp_path / "data.jsonl"
    line = json.dumps({"prompt": f"the{separator}quick", "completion": " fox"}, ensure_ascii=False)
    data.write_text(f"{line}\n\n{line}\n", encoding="utf-8")
    source = file_source(data, tiny_folder)
    rng = random.Random(0)
    assert source.draw(rng) == source.draw(rng)
