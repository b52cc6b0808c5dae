"""The numbers of `looped inspect`, up to the published sizes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    Refuse,
    change_json,
    change_tensors,
    published_config,
    read_checkpoint,
    small_config,
    write_checkpoint,
)

from looped.convert import Inspection, convert_checkpoint, inspect_folder
from looped.errors import LoopedError
from looped.models import num_parameters, parameter_shapes, parse_config


def published(num_layers: int) -> Inspection:
    config = parse_config(published_config(num_layers))
    return Inspection(
        form="hugging_face", config=config, dtype="bfloat16", tensors=parameter_shapes(config)
    )


@pytest.mark.parametrize(
    ("num_layers", "num_tensors", "size"),
    [(24, 269, 1_434_652_673), (48, 533, 2_667_974_657)],
)
def test_the_published_models_have_their_published_sizes(
    num_layers: int, num_tensors: int, size: int
) -> None:
    inspection = published(num_layers)
    assert len(inspection.tensors) == num_tensors
    assert inspection.num_parameters == size
    assert num_parameters(inspection.config) == size
    assert inspection.num_bytes == 2 * size
    values = inspection.to_json()
    assert values["num_tensors"] == num_tensors
    assert values["num_parameters"] == size
    assert values["bytes"] == 2 * size


def test_a_token_of_the_small_published_model_takes_768_kib_of_cache() -> None:
    inspection = published(24)
    assert inspection.kv_bytes_per_token("bfloat16") == 768 * 2**10
    assert inspection.to_json()["kv_bytes_per_token"] == {
        "float32": 1536 * 2**10,
        "bfloat16": 768 * 2**10,
    }
    assert published(48).kv_bytes_per_token("bfloat16") == 1536 * 2**10


def test_cache_is_counted_by_key_heads_and_planes() -> None:
    config = parse_config(small_config(total_ut_steps=3))
    inspection = Inspection(form="converted", config=config, dtype="float32", tensors={})
    # 3 planes, 2 layers, key and value, 2 heads of 6
    assert inspection.kv_bytes_per_token("bfloat16") == 3 * 2 * 2 * 2 * 6 * 2


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_both_forms_of_a_model_look_alike(tmp_path: Path, stored: str) -> None:
    source = write_checkpoint(tmp_path / "hf", dtype=stored)
    convert_checkpoint(source, tmp_path / "converted")
    before, after = inspect_folder(source), inspect_folder(tmp_path / "converted")
    assert (before.form, after.form) == ("hugging_face", "converted")
    assert before.tensors == after.tensors
    assert before.dtype == stored
    assert after.dtype == ("float32" if stored == "float16" else stored)
    assert before.num_bytes == sum(tensor.nbytes for tensor in read_checkpoint(source).values())


def test_json_holds_every_number(tmp_path: Path) -> None:
    inspection = inspect_folder(write_checkpoint(tmp_path / "hf"))
    values: dict[str, Any] = json.loads(json.dumps(inspection.to_json()))
    assert values["form"] == "hugging_face"
    assert values["config"]["num_kv_heads"] == 2
    assert values["dtype"] == "float32"
    assert values["num_tensors"] == 27
    assert values["num_parameters"] == num_parameters(inspection.config)
    assert values["bytes"] == 4 * num_parameters(inspection.config)
    assert values["tensors"]["layers.1.attention.query.weight"] == [24, 12]


def test_inspection_reads_headers_only(tmp_path: Path, refusal: Refuse) -> None:
    source = write_checkpoint(tmp_path / "hf")
    change_tensors(source, lambda tensors: tensors["model.norm.weight"].fill(np.nan))
    assert inspect_folder(source).num_parameters > 0
    assert "non-finite" in refusal(source)


def test_an_unsound_folder_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "hf")
    change_json(source / "config.json", num_hidden_layers=5)
    with pytest.raises(LoopedError, match=r"config\.json says 5 layers and the tensors have 2"):
        inspect_folder(source)
    with pytest.raises(LoopedError, match="is not a folder"):
        inspect_folder(tmp_path / "nowhere")
