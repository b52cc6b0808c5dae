"""Random-weight models: the right shapes, a tokenizer that runs, nothing overwritten."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from checkpoints import every_file, read_checkpoint, tensor_shapes
from command_line import looped

from looped.bench.model_maker import DTYPES, SHAPES, make_model
from looped.errors import UsageError
from looped.llm import LLM
from looped.models import num_parameters, read_config
from looped.sampling_params import SamplingParams
from looped.text.tokenizer import Tokenizer

TINY = replace(
    SHAPES["small"],
    num_layers=2,
    hidden_size=32,
    num_heads=2,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=48,
    vocab_size=300,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "tiny"
    make_model(folder, TINY, dtype="float32")
    return folder


def test_the_shapes_are_those_that_are_measured():
    assert num_parameters(SHAPES["1.4b"]) == 1_434_652_673
    small = SHAPES["small"]
    assert (small.hidden_size, small.num_layers, small.num_loops) == (512, 8, 4)
    assert (small.num_heads, small.head_dim, small.intermediate_size) == (4, 128, 1408)
    assert small.vocab_size == 4096


def test_tensors_have_hugging_faces_names_shapes_and_type(tmp_path, tiny):
    shapes = tensor_shapes(json.loads((tiny / "config.json").read_text()))
    assert {name: t.shape for name, t in read_checkpoint(tiny).items()} == shapes
    assert {t.dtype for t in read_checkpoint(tiny).values()} == {np.dtype(np.float32)}
    make_model(tmp_path / "half", TINY, dtype="bfloat16")
    assert {t.dtype for t in read_checkpoint(tmp_path / "half").values()} == {
        np.dtype(ml_dtypes.bfloat16)
    }
    config = read_config(tmp_path / "half" / "config.json")
    assert config == replace(TINY, dtype="bfloat16")


def test_large_models_are_split_and_load(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr("looped.bench.model_maker.MAX_SHARD_BYTES", 50_000)
    make_model(tmp_path / "split", TINY, dtype="float32")
    assert len(list((tmp_path / "split").glob("*.safetensors"))) > 1
    split, whole = read_checkpoint(tmp_path / "split"), read_checkpoint(tiny)
    assert split.keys() == whole.keys()
    looped("inspect", tmp_path / "split")


def test_a_seed_gives_the_same_files_and_another_gives_others(tmp_path, tiny):
    make_model(tmp_path / "same", TINY, dtype="float32")
    make_model(tmp_path / "other", TINY, dtype="float32", seed=1)
    weights = "model.safetensors"
    assert (tmp_path / "same" / weights).read_bytes() == (tiny / weights).read_bytes()
    assert (tmp_path / "other" / weights).read_bytes() != (tiny / weights).read_bytes()


def test_the_tokenizer_gives_any_text_back(tiny):
    tokenizer = Tokenizer.from_folder(tiny)
    text = "Grüße, 世界 🌍\n\t  two  spaces\x00\x7f"
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert all(3 <= token_id < 259 for token_id in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([299, *ids, 260]) == text
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.stop_token_ids == {0}
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}])[0] == 1


@pytest.mark.slow
def test_it_runs_and_its_gate_spreads_exits_over_the_loops(tiny):
    llm = LLM(str(tiny), max_num_seqs=4, max_model_len=64, max_num_batched_tokens=32)
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=1)
    options = replace(params, exit=replace(params.exit, threshold=0.5, min_loops=1))
    (done,) = llm.generate(["hello"], options, show_progress=False)
    assert len(set(done.exit_depths[1:])) > 1
    assert len(done.token_ids) == 40


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_command_makes_the_small_shape_and_refuses_a_folder_that_exists(tmp_path, dtype):
    folder = tmp_path / "small"
    if dtype == "bfloat16":  # 60 MB; once is enough
        looped("bench", "make-model", "--shape", "small", folder)
        config = json.loads((folder / "config.json").read_text())
        assert (config["torch_dtype"], config["hidden_size"]) == ("bfloat16", 512)
    else:
        folder.mkdir()
    before = every_file(folder)
    done = looped("bench", "make-model", folder, "--dtype", dtype, check=False)
    assert done.returncode == 2
    assert "exists; choose another name" in done.stderr
    assert every_file(folder) == before


def test_what_cannot_be_made_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UsageError, match="vocab_size must be at least 259"):
        make_model(tmp_path / "a", replace(TINY, vocab_size=100))
    with pytest.raises(UsageError, match="dtype must be one of float32, bfloat16; got 'int8'"):
        make_model(tmp_path / "a", TINY, dtype="int8")
    assert not list(tmp_path.iterdir())
