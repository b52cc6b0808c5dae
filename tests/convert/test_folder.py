"""The converted folder: its manifest, and how damage shows."""

import hashlib
import json
import shutil
from dataclasses import FrozenInstanceError
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import (
    REMOVED,
    change_json,
    read_checkpoint,
    small_config,
    write_checkpoint,
)

from looped.convert import ConvertedFolder, HuggingFaceFolder, Manifest, convert_checkpoint
from looped.convert.folder import checksum, write_parameters
from looped.errors import LoopedError
from looped.models import parameter_shapes, parse_config
from looped.models.ouro_family import TENSOR_NAMES


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", dtype="bfloat16")


@pytest.fixture
def converted(tmp_path: Path, source: Path) -> Path:
    convert_checkpoint(source, tmp_path / "converted")
    return tmp_path / "converted"


def read_all(folder: Path) -> None:
    opened = ConvertedFolder(folder)
    for name in opened.shapes:
        opened.read(name)


def test_the_manifest_says_where_the_folder_came_from(source: Path, converted: Path) -> None:
    values = json.loads((converted / "manifest.json").read_text())
    checksums = values.pop("checksums")
    assert values == {
        "format_version": 1,
        "source": str(source),
        "source_dtype": "bfloat16",
        "dtype": "bfloat16",
        "tool_version": version("looped"),
        "lookahead_gate": {},
    }
    stored = read_checkpoint(source)
    assert checksums == {
        name: hashlib.sha256(stored[TENSOR_NAMES.hugging_face_name(name)].tobytes()).hexdigest()
        for name in parameter_shapes(parse_config(small_config()))
    }


def test_a_manifest_from_before_look_ahead_gates_is_read(converted: Path) -> None:
    path = converted / "manifest.json"
    values = json.loads(path.read_text())
    del values["lookahead_gate"]
    path.write_text(json.dumps(values))
    assert Manifest.from_file(path).lookahead_gate == {}


def test_a_manifest_reads_back_as_written_and_is_frozen(tmp_path: Path) -> None:
    manifest = Manifest.create(
        source="a/b", source_dtype="float16", dtype="float32", checksums={"x": "00"}
    )
    manifest.write(tmp_path / "manifest.json")
    assert Manifest.from_file(tmp_path / "manifest.json") == manifest
    with pytest.raises(FrozenInstanceError):
        manifest.dtype = "bfloat16"  # type: ignore[misc]


def test_checksums_are_of_the_bytes_in_c_order() -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert checksum(tensor) == hashlib.sha256(tensor.tobytes()).hexdigest()
    assert checksum(tensor.T) == hashlib.sha256(tensor.T.tobytes()).hexdigest()
    assert checksum(tensor.T) != checksum(tensor)
    assert checksum(tensor.astype(ml_dtypes.bfloat16)) != checksum(tensor)


def test_only_a_manifest_makes_a_converted_folder(source: Path, converted: Path) -> None:
    assert ConvertedFolder.is_at(converted)
    assert not ConvertedFolder.is_at(source)
    assert not ConvertedFolder.is_at(converted / "nowhere")
    with pytest.raises(LoopedError, match=r"manifest\.json is missing"):
        ConvertedFolder(source)


def test_tensors_can_be_read_in_any_order_and_again(source: Path, converted: Path) -> None:
    folder, stored = ConvertedFolder(converted), HuggingFaceFolder(source)
    assert folder.dtype == "bfloat16"
    names = list(folder.shapes)
    for name in [*names[::-1], *names[::7], "embedding.weight", "embedding.weight"]:
        assert folder.read(name).tobytes() == stored.read(name).tobytes()


def test_what_is_read_belongs_to_the_reader(converted: Path) -> None:
    folder = ConvertedFolder(converted)
    first = folder.read("exit_gate.weight").copy()
    folder.read("exit_gate.weight")[...] = 0
    assert folder.read("exit_gate.weight").tobytes() == first.tobytes()


def test_a_copy_of_the_folder_reads_elsewhere(converted: Path, tmp_path: Path) -> None:
    shutil.move(converted, tmp_path / "elsewhere")
    read_all(tmp_path / "elsewhere")


# Damage.


@pytest.mark.parametrize("found", [0, 2, "1", None, REMOVED])
def test_another_format_version_is_refused(converted: Path, found: object) -> None:
    change_json(converted / "manifest.json", format_version=found)
    shown = None if found is REMOVED else found
    with pytest.raises(LoopedError) as caught:
        ConvertedFolder(converted)
    assert f"format_version is {shown!r}, this version of looped reads 1" in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"dtype": REMOVED}, {"checksums": REMOVED}, {"extra": 1}, {"checksums": ["a"]}]
)
def test_a_damaged_manifest_is_refused(converted: Path, changes: dict[str, Any]) -> None:
    change_json(converted / "manifest.json", **changes)
    with pytest.raises(LoopedError, match=r"manifest\.json is damaged; convert the checkpoint"):
        ConvertedFolder(converted)


def test_a_config_of_another_tree_is_refused(converted: Path) -> None:
    change_json(converted / "config.json", num_hidden_layers=3)
    with pytest.raises(LoopedError, match=r"describes other tensors than manifest\.json lists"):
        ConvertedFolder(converted)


def test_a_config_of_other_shapes_is_refused_when_tensors_are_read(converted: Path) -> None:
    change_json(converted / "config.json", intermediate_size=10)
    with pytest.raises(LoopedError) as caught:
        read_all(converted)
    assert (
        "layers.0.mlp.gate.weight is stored as bfloat16 (20, 12), expected bfloat16 (10, 12)"
        in str(caught.value)
    )


def test_a_manifest_of_another_type_is_refused_when_tensors_are_read(converted: Path) -> None:
    change_json(converted / "manifest.json", dtype="float32")
    with pytest.raises(LoopedError, match=r"is stored as bfloat16 .*, expected float32"):
        read_all(converted)


def test_a_tensor_that_orbax_does_not_hold_is_refused(converted: Path) -> None:
    folder = ConvertedFolder(converted)
    tensors = {name: folder.read(name) for name in folder.shapes}
    del tensors["layers.1.mlp.down.weight"]
    shutil.rmtree(converted / "parameters")
    write_parameters(converted, tensors)
    with pytest.raises(LoopedError, match=r"layers\.1\.mlp\.down\.weight is stored as nothing"):
        read_all(converted)


def test_a_missing_orbax_folder_is_refused(converted: Path) -> None:
    shutil.rmtree(converted / "parameters")
    with pytest.raises(
        LoopedError, match="has a manifest but no parameters; convert the checkpoint"
    ):
        read_all(converted)


@pytest.mark.parametrize("file", ["_METADATA", "manifest.ocdbt"])
def test_a_truncated_orbax_file_is_refused(converted: Path, file: str) -> None:
    path = converted / "parameters" / file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(LoopedError, match="parameters cannot be read"):
        read_all(converted)


def test_truncated_tensor_data_is_refused(converted: Path) -> None:
    data = max((converted / "parameters").rglob("d/*"), key=lambda path: path.stat().st_size)
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(LoopedError) as caught:
        read_all(converted)
    assert "parameters cannot be read" in str(caught.value)
    assert "\n" not in str(caught.value)
