"""Conversion: what arrives, what a failure leaves, and what it costs at the true size."""

import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from checkpoints import (
    NUMPY_DTYPES,
    Refuse,
    Tensors,
    assert_same_bits,
    change_json,
    change_tensors,
    copy_fixture,
    flip_bit,
    read_checkpoint,
    small_config,
    write_checkpoint,
)

from looped.convert import ConvertedFolder, Manifest, convert_checkpoint, to_flax
from looped.errors import LoopedError, UsageError
from looped.models.ouro_family import TENSOR_NAMES

QUERY = "model.layers.1.self_attn.q_proj.weight"


def read_converted(folder: Path) -> Tensors:
    """All tensors of a converted folder under Hugging Face's names."""
    converted = ConvertedFolder(folder)
    return {TENSOR_NAMES.hugging_face_name(name): converted.read(name) for name in converted.shapes}


def cast(tensors: Tensors, dtype: str) -> Tensors:
    return {name: tensor.astype(NUMPY_DTYPES[dtype]) for name, tensor in tensors.items()}


# What arrives.


@pytest.mark.parametrize("max_shard_bytes", [None, 3000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float32_and_bfloat16_arrive_bit_for_bit(
    tmp_path: Path, dtype: str, max_shard_bytes: int | None
) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype=dtype, max_shard_bytes=max_shard_bytes)
    manifest = convert_checkpoint(source, tmp_path / "out")
    assert manifest.dtype == manifest.source_dtype == dtype
    assert_same_bits(read_converted(tmp_path / "out"), read_checkpoint(source))


def test_float16_becomes_float32_exactly(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype="float16")
    tiny = np.finfo(np.float16).smallest_subnormal  # bfloat16 has it, but few of its neighbours
    change_tensors(source, lambda tensors: tensors[QUERY].fill(3 * tiny))
    manifest = convert_checkpoint(source, tmp_path / "out")
    assert (manifest.source_dtype, manifest.dtype) == ("float16", "float32")
    got = read_converted(tmp_path / "out")
    assert_same_bits(got, cast(read_checkpoint(source), "float32"))
    assert_same_bits(cast(got, "float16"), read_checkpoint(source))


@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_dtype_overrides_the_type_of_every_tensor(tmp_path: Path, stored: str, wanted: str) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype=stored)
    manifest = convert_checkpoint(source, tmp_path / "out", dtype=wanted)
    assert (manifest.source_dtype, manifest.dtype) == (stored, wanted)
    got = read_converted(tmp_path / "out")
    assert_same_bits(got, cast(read_checkpoint(source), wanted))
    assert {tensor.dtype.name for tensor in got.values()} == {wanted}


def test_a_mixture_becomes_one_type_that_holds_all(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype="bfloat16")

    def widen(tensors: Tensors) -> None:
        tensors[QUERY] = (tensors[QUERY].astype(np.float32) * np.float32(1.001)).copy()

    stored = read_checkpoint(change_tensors(source, widen))
    assert {tensor.dtype.name for tensor in stored.values()} == {"bfloat16", "float32"}
    manifest = convert_checkpoint(source, tmp_path / "out")
    assert manifest.source_dtype == manifest.dtype == "float32"
    assert_same_bits(read_converted(tmp_path / "out"), cast(stored, "float32"))


@pytest.mark.parametrize("dtype", ["float16", "float64", "", "bf16"])
def test_another_dtype_is_a_usage_error(tmp_path: Path, dtype: str) -> None:
    source = write_checkpoint(tmp_path / "hf")
    with pytest.raises(UsageError, match=f"one of float32, bfloat16; got '{dtype}'"):
        convert_checkpoint(source, tmp_path / "out", dtype=dtype)


def test_values_that_overflow_bfloat16_are_refused(tmp_path: Path, refusal: Refuse) -> None:
    source = write_checkpoint(tmp_path / "hf")
    change_tensors(source, lambda tensors: tensors[QUERY].fill(np.finfo(np.float32).max))
    message = refusal(source, dtype="bfloat16")
    assert message == f"{source}: bfloat16 overflows in layers.1.attention.query.weight"


def test_the_folder_holds_these_files_and_no_scratch(tmp_path: Path) -> None:
    convert_checkpoint(copy_fixture(tmp_path / "hf"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "generation_config.json",
        "manifest.json",
        "parameters",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_companions_are_copied_as_they_are_and_other_files_are_not(tmp_path: Path) -> None:
    source = copy_fixture(tmp_path / "hf")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "modeling_ouro.py").write_text("import os")
    convert_checkpoint(source, tmp_path / "out")
    for name in (
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert not (tmp_path / "out" / "modeling_ouro.py").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"torch_dtype": "float32"}, {"torch_dtype": "bfloat16"}),
        ({"dtype": "float32"}, {"dtype": "bfloat16"}),
        (
            {"dtype": "float32", "torch_dtype": "float32"},
            {"dtype": "bfloat16", "torch_dtype": "bfloat16"},
        ),
        ({}, {"torch_dtype": "bfloat16"}),
    ],
)
def test_the_type_in_config_json_follows_and_the_rest_stays(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    source = write_checkpoint(tmp_path / "hf")
    values = small_config(rltt_stage=2)
    del values["torch_dtype"]
    (source / "config.json").write_text(json.dumps(values | before))
    convert_checkpoint(source, tmp_path / "out", dtype="bfloat16")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written == values | after
    assert ConvertedFolder(tmp_path / "out").config.dtype == "bfloat16"


def test_the_source_can_be_called_by_its_hub_id(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf")
    manifest = convert_checkpoint(source, tmp_path / "out", source_name="ByteDance/Ouro-1.4B")
    assert manifest.source == "ByteDance/Ouro-1.4B"
    assert manifest == Manifest.from_file(tmp_path / "out" / "manifest.json")


def test_the_source_is_left_as_it_was(tmp_path: Path) -> None:
    source = copy_fixture(tmp_path / "hf")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    convert_checkpoint(source, tmp_path / "out")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_the_result_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="looped")
    source = write_checkpoint(tmp_path / "hf")
    convert_checkpoint(source, tmp_path / "out")
    assert f"converted {source} (float32) to {tmp_path / 'out'} (float32)" in caplog.messages


# Verification.


@pytest.fixture
def damaging_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes parameters as usual, then damages a tensor on the disk."""
    write = to_flax.write_parameters

    def write_and_damage(folder: Path, tensors: Tensors) -> None:
        write(folder, tensors)
        flip_bit(folder / "parameters", tensors["layers.1.attention.query.weight"])

    monkeypatch.setattr(to_flax, "write_parameters", write_and_damage)


@pytest.mark.usefixtures("damaging_writer")
def test_verify_finds_one_flipped_bit(tmp_path: Path, refusal: Refuse) -> None:
    source = write_checkpoint(tmp_path / "hf")
    message = refusal(source)
    assert "layers.1.attention.query.weight reads back differently than it was written" in message


@pytest.mark.usefixtures("damaging_writer")
def test_without_verify_the_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    convert_checkpoint(write_checkpoint(tmp_path / "hf"), tmp_path / "out", verify=False)
    assert (tmp_path / "out").exists()


def test_verify_tells_negative_zero_from_zero(
    tmp_path: Path, refusal: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(tmp_path / "hf")
    change_tensors(source, lambda tensors: tensors[QUERY].fill(-0.0))
    read = ConvertedFolder.read
    monkeypatch.setattr(ConvertedFolder, "read", lambda folder, name: read(folder, name) + 0.0)
    assert "layers.1.attention.query.weight reads back differently" in refusal(source)


# Interruptions.


@pytest.mark.parametrize("step", ["write_parameters", "_write_config", "_verify"])
def test_an_exception_at_any_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    source = write_checkpoint(tmp_path / "hf")
    monkeypatch.setattr(to_flax, step, fail)
    with pytest.raises(OSError, match="No space left"):
        convert_checkpoint(source, tmp_path / "out" / "made")
    assert list((tmp_path / "out").iterdir()) == []


def test_overwrite_keeps_the_old_folder_if_the_conversion_fails(
    tmp_path: Path, refusal: Refuse
) -> None:
    old = write_checkpoint(tmp_path / "old", seed=1)
    convert_checkpoint(old, tmp_path / "out")
    poisoned = write_checkpoint(tmp_path / "poisoned", seed=2)
    change_tensors(poisoned, lambda tensors: tensors[QUERY].fill(np.nan))
    assert "non-finite" in refusal(poisoned, tmp_path / "out", overwrite=True)
    too_large = write_checkpoint(tmp_path / "large", seed=3)
    change_tensors(too_large, lambda tensors: tensors[QUERY].fill(3.4e38))
    message = refusal(too_large, tmp_path / "out", overwrite=True, dtype="bfloat16")
    assert "overflows" in message
    assert_same_bits(read_converted(tmp_path / "out"), read_checkpoint(old))


def test_overwrite_replaces_an_earlier_conversion(tmp_path: Path) -> None:
    convert_checkpoint(write_checkpoint(tmp_path / "a", seed=1), tmp_path / "out")
    source = write_checkpoint(tmp_path / "b", seed=2, dtype="bfloat16")
    convert_checkpoint(source, tmp_path / "out", overwrite=True)
    assert_same_bits(read_converted(tmp_path / "out"), read_checkpoint(source))


KILLED = """
import sys, time
from pathlib import Path
from looped.convert import convert_checkpoint, to_flax

source, destination, step, marker = sys.argv[1:]
original = getattr(to_flax, step)

def wait(*arguments):
    original(*arguments)
    Path(marker).touch()
    time.sleep(60)

setattr(to_flax, step, wait)
convert_checkpoint(Path(source), Path(destination), overwrite=True)
"""


@pytest.mark.parametrize(
    ("step", "exists"),
    [
        ("write_parameters", False),
        ("_verify", True),
        pytest.param("write_parameters", True, marks=pytest.mark.long),
        pytest.param("_verify", False, marks=pytest.mark.long),
    ],
)
def test_a_killed_process_leaves_nothing_that_looks_finished(
    tmp_path: Path, step: str, exists: bool
) -> None:
    source = write_checkpoint(tmp_path / "hf", seed=1)
    destination, marker = tmp_path / "out" / "made", tmp_path / "marker"
    old = write_checkpoint(tmp_path / "old", seed=2)
    if exists:
        convert_checkpoint(old, destination)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(source), str(destination), step, str(marker)],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert process.poll() is None, "the conversion ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    left = [path.name for path in (tmp_path / "out").iterdir()]
    visible = [name for name in left if not name.startswith(".")]
    assert visible == (["made"] if exists else [])
    assert all(".partial-" in name for name in left if name.startswith("."))
    assert len(left) == len(visible) + 1, "the process was killed too early or too late"
    if exists:
        assert_same_bits(read_converted(destination), read_checkpoint(old))
    convert_checkpoint(source, destination, overwrite=exists)
    assert_same_bits(read_converted(destination), read_checkpoint(source))


# The true size.


def load_experiment() -> ModuleType:
    path = Path(__file__).parents[2] / "experiments" / "convert_1_4b.py"
    spec = importlib.util.spec_from_file_location("convert_1_4b", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_true_size_converts_within_its_output_and_one_gibibyte(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:  # pytest would keep 6 GB
        measurement = load_experiment().measure(Path(folder))
    assert measurement.output_bytes > 2 * 1_434_652_673
    assert measurement.peak_anonymous_bytes <= measurement.output_bytes + 2**30


def test_the_experiment_measures_a_small_shape_as_well(tmp_path: Path) -> None:
    measurement = load_experiment().measure(tmp_path, config=small_config())
    assert measurement.peak_anonymous_bytes > 10 * 2**20
    assert measurement.output_bytes > 2 * 3000
    assert measurement.seconds > 0


def test_an_unsupported_config_is_refused(tmp_path: Path, refusal: Refuse) -> None:
    source = write_checkpoint(tmp_path / "hf")
    message = refusal(change_json(source / "config.json", tie_word_embeddings=True))
    assert "tie_word_embeddings = True is not supported, only False is" in message
    with pytest.raises(LoopedError):
        ConvertedFolder(source)
