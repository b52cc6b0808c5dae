"""The persistent compilation cache: on by default, in a place of the user's choice."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from looped import LLM, SamplingParams
llm = LLM(sys.argv[1], max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64, num_blocks=64)
llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), show_progress=False)
"""


@pytest.mark.long
def test_a_second_start_finds_what_the_first_has_compiled(tiny_folder, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment["LOOPED_CACHE_DIR"] = str(tmp_path)
    files = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", CODE, str(tiny_folder)], check=True, env=environment)
        files.append({path.name for path in (tmp_path / "xla").glob("*-cache")})
    assert files[0]
    assert files[0] == files[1]
