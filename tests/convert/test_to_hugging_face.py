"""The way back: bit for bit, in files that other tools read, and never from a damaged folder."""

import json
from pathlib import Path

import pytest
from checkpoints import (
    INDEX_FILE,
    assert_same_bits,
    change_json,
    copy_fixture,
    every_file,
    flip_bit,
    published_config,
    read_checkpoint,
    write_checkpoint,
)
from safetensors import safe_open

from looped.convert import ConvertedFolder, convert_checkpoint, export_checkpoint
from looped.errors import LoopedError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    convert_checkpoint(write_checkpoint(tmp_path / "hf"), tmp_path / "converted")
    return tmp_path / "converted"


@pytest.mark.parametrize("stored_shard_bytes", [None, 3000])
@pytest.mark.parametrize("max_shard_bytes", [10**9, 3000, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_round_trip_is_bit_exact(
    tmp_path: Path, dtype: str, max_shard_bytes: int, stored_shard_bytes: int | None
) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype=dtype, max_shard_bytes=stored_shard_bytes)
    convert_checkpoint(source, tmp_path / "converted")
    export_checkpoint(tmp_path / "converted", tmp_path / "back", max_shard_bytes=max_shard_bytes)
    assert_same_bits(read_checkpoint(tmp_path / "back"), read_checkpoint(source))
    assert (tmp_path / "back" / "config.json").read_text() == (source / "config.json").read_text()


def test_a_second_conversion_gives_the_same_checksums(converted: Path, tmp_path: Path) -> None:
    export_checkpoint(converted, tmp_path / "back", max_shard_bytes=3000)
    again = convert_checkpoint(tmp_path / "back", tmp_path / "again")
    assert again.checksums == ConvertedFolder(converted).manifest.checksums


def test_a_small_model_is_one_file_that_names_its_framework(
    converted: Path, tmp_path: Path
) -> None:
    export_checkpoint(converted, tmp_path / "back")
    assert names(tmp_path / "back") == ["config.json", "model.safetensors"]
    with safe_open(tmp_path / "back" / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_shards_keep_to_their_size_and_the_index_names_every_tensor(
    converted: Path, tmp_path: Path
) -> None:
    export_checkpoint(converted, tmp_path / "back", max_shard_bytes=3000)
    index = json.loads((tmp_path / "back" / INDEX_FILE).read_text())
    stored = read_checkpoint(tmp_path / "back")
    assert index["weight_map"].keys() == stored.keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in stored.values())
    files = sorted((tmp_path / "back").glob("*.safetensors"))
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == [file.name for file in files]
    for file in files:
        with safe_open(file, framework="numpy") as opened:
            held = list(opened.keys())
        assert {index["weight_map"][name] for name in held} == {file.name}
        assert sum(stored[name].nbytes for name in held) <= 3000


def test_files_are_readable_for_all_who_may_read_the_folder(
    converted: Path, tmp_path: Path
) -> None:
    export_checkpoint(converted, tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_tokenizer_files_come_along(tmp_path: Path) -> None:
    source = copy_fixture(tmp_path / "hf", "ouro-tiny-gqa")
    convert_checkpoint(source, tmp_path / "converted")
    export_checkpoint(tmp_path / "converted", tmp_path / "back")
    assert names(tmp_path / "back") == names(source)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    assert_same_bits(read_checkpoint(tmp_path / "back"), read_checkpoint(source))


def test_an_overridden_type_is_the_exported_type(tmp_path: Path) -> None:
    convert_checkpoint(write_checkpoint(tmp_path / "hf"), tmp_path / "c", dtype="bfloat16")
    export_checkpoint(tmp_path / "c", tmp_path / "back")
    stored = read_checkpoint(tmp_path / "back")
    assert {tensor.dtype.name for tensor in stored.values()} == {"bfloat16"}
    assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == "bfloat16"


# Refusals.


def refuse(source: Path, destination: Path, **options: bool) -> str:
    before = every_file(destination.parent)
    with pytest.raises(LoopedError) as caught:
        export_checkpoint(source, destination, **options)
    assert every_file(destination.parent) == before
    return str(caught.value)


def test_a_hugging_face_folder_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf")
    message = refuse(source, tmp_path / "back")
    assert message == f"{source} is not a converted folder; make one with `looped convert`"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "nowhere is not a converted folder" in refuse(tmp_path / "nowhere", tmp_path / "back")


@pytest.mark.parametrize("name", ["embedding.weight", "layers.1.attention.query.weight"])
def test_a_flipped_bit_is_refused_by_the_tensor_s_name(
    converted: Path, tmp_path: Path, name: str
) -> None:
    flip_bit(converted / "parameters", ConvertedFolder(converted).read(name))
    message = refuse(converted, tmp_path / "back")
    assert f"{name} does not match its checksum in the manifest; the folder is damaged" in message


def test_a_checksum_that_was_changed_is_refused(converted: Path, tmp_path: Path) -> None:
    manifest = json.loads((converted / "manifest.json").read_text())
    checksums = manifest["checksums"] | {"lm_head.weight": "0" * 64}
    change_json(converted / "manifest.json", checksums=checksums)
    assert "lm_head.weight does not match its checksum" in refuse(converted, tmp_path / "back")


def test_truncated_data_is_refused(converted: Path, tmp_path: Path) -> None:
    (converted / "parameters" / "manifest.ocdbt").write_bytes(b"")
    assert "parameters cannot be read" in refuse(converted, tmp_path / "back")


def test_a_config_of_other_shapes_is_refused(converted: Path, tmp_path: Path) -> None:
    change_json(converted / "config.json", num_key_value_heads=4)
    assert "is stored as float32 (12, 12), expected" in refuse(converted, tmp_path / "back")


def test_an_existing_destination_is_refused(converted: Path, tmp_path: Path) -> None:
    source = tmp_path / "hf"
    assert "hf exists; choose another name or pass --overwrite" in refuse(converted, source)
    assert "lies in the source" in refuse(converted, converted / "back")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    message = refuse(converted, tmp_path / "other", overwrite=True)
    assert "is not a model folder" in message


def test_overwrite_replaces_a_model_folder(converted: Path, tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", max_shard_bytes=3000, seed=7)
    export_checkpoint(converted, old, overwrite=True)
    assert_same_bits(read_checkpoint(old), read_checkpoint(tmp_path / "hf"))
    assert not (old / INDEX_FILE).exists()


def test_the_published_sizes_need_no_index_below_five_gigabytes() -> None:
    assert 2 * 1_434_652_673 < 5 * 10**9 < 2 * 2_667_974_657
    assert published_config(48)["num_hidden_layers"] == 48
