"""The persistent compilation cache: on by default, in a place of the user's choice."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from looped.process.compilation_cache import use_compilation_cache

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


CACHE_DIR = "jax_compilation_cache_dir"
SECONDS = "jax_persistent_cache_min_compile_time_secs"


@pytest.fixture
def no_cache_yet(monkeypatch, tmp_path):
    """As in a new process without variables; then everything is as it was."""
    before = {name: jax.config.values[name] for name in (CACHE_DIR, SECONDS)}
    jax.config.update(CACHE_DIR, None)
    monkeypatch.delenv("LOOPED_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def nobody(*_):
    raise RuntimeError("Could not determine home directory.")


def without_home(monkeypatch, file):
    monkeypatch.setattr(Path, "home", nobody)


def home_is_a_file(monkeypatch, file):
    monkeypatch.setenv("HOME", str(file))


def variable_names_a_file(monkeypatch, file):
    monkeypatch.setenv("LOOPED_CACHE_DIR", str(file))


def home_is_read_only(monkeypatch, file):
    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write everywhere


def program_names_a_file(monkeypatch, file):
    jax.config.update(CACHE_DIR, str(file))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (without_home, "Could not determine home directory"),
        (home_is_a_file, "Not a directory"),
        (variable_names_a_file, "Not a directory"),
        (home_is_read_only, "Permission denied"),
        (program_names_a_file, "File exists"),
    ],
)
def test_where_nothing_can_be_written_there_is_no_cache_and_one_line(
    no_cache_yet, monkeypatch, tmp_path, caplog, make, reason
):
    file = tmp_path / "file"
    file.touch()
    make(monkeypatch, file)
    monkeypatch.setattr(logging.getLogger("looped"), "propagate", True)
    use_compilation_cache()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith("no compilation cache, so every start compiles: ")
    assert reason in record.message
    assert jax.config.values[CACHE_DIR] is None


def test_a_cache_of_the_program_or_in_a_bucket_stays(no_cache_yet, tmp_path, caplog):
    for place in (str(tmp_path / "own"), "gs://bucket/cache"):
        jax.config.update(CACHE_DIR, place)
        use_compilation_cache()
        assert jax.config.values[CACHE_DIR] == place
    assert caplog.records == []


@pytest.mark.long
def test_a_command_without_a_home_runs_and_says_so_once(tiny_folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMP")}
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "looped", "-q", "generate", "--model", str(tiny_folder)),
            *("--prompt-ids", "260,261", "--max-tokens", "2", "--max-num-seqs", "1"),
            *("--max-num-batched-tokens", "16", "--max-model-len", "16"),
        ],
        env={**kept, "HOME": "/dev/null/nowhere", "LOOPED_CACHE_DIR": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "no compilation cache" in done.stderr
