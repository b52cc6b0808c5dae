"""Every reason to refuse a checkpoint, by its message; `refusal` sees that nothing is written."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from checkpoints import (
    INDEX_FILE,
    REMOVED,
    Refuse,
    Tensors,
    change_json,
    change_tensors,
    read_checkpoint,
    small_config,
    tensor_shapes,
    write_checkpoint,
    write_json,
)
from safetensors.numpy import save_file

from looped.convert import HuggingFaceFolder
from looped.errors import LoopedError
from looped.models.ouro_family import TENSOR_NAMES

QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "sharded", max_shard_bytes=3000)


def change_index(folder: Path, **entries: object) -> None:
    weight_map = json.loads((folder / INDEX_FILE).read_text())["weight_map"] | entries
    kept = {name: file for name, file in weight_map.items() if file is not REMOVED}
    change_json(folder / INDEX_FILE, weight_map=kept)


# What is accepted.


@pytest.mark.parametrize("max_shard_bytes", [None, 3000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_are_read_as_they_are_stored(
    tmp_path: Path, dtype: str, max_shard_bytes: int | None
) -> None:
    path = write_checkpoint(tmp_path / "hf", dtype=dtype, max_shard_bytes=max_shard_bytes)
    stored = read_checkpoint(path)
    folder = HuggingFaceFolder(path)
    folder.check_values()
    assert folder.dtype == dtype
    for name, shape in folder.shapes.items():
        tensor = folder.read(name)
        assert tensor.shape == shape
        assert tensor.dtype.name == dtype
        assert tensor.tobytes() == stored[TENSOR_NAMES.hugging_face_name(name)].tobytes()


def test_sharded_means_several_files_in_these_tests(sharded: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) == 6


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ({"bfloat16"}, "bfloat16"),
        ({"bfloat16", "float32"}, "float32"),
        ({"bfloat16", "float16"}, "float32"),
    ],
)
def test_a_mixture_is_of_the_narrowest_type_that_holds_all(
    tmp_path: Path, dtypes: set[str], expected: str
) -> None:
    folder = write_checkpoint(tmp_path / "hf", dtype="bfloat16")
    others = dtypes - {"bfloat16"}

    def widen_norm(tensors: Tensors) -> None:
        for other in others:
            tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(other)

    assert HuggingFaceFolder(change_tensors(folder, widen_norm)).dtype == expected


def test_files_that_are_links_are_read_as_in_a_hub_snapshot(sharded: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in sharded.iterdir():
        (snapshot / file.name).symlink_to(Path("..") / sharded.name / file.name)
    HuggingFaceFolder(snapshot).check_values()


def test_files_beside_the_index_are_not_read(sharded: Path) -> None:
    shutil.copy(sharded / "model-00001-of-00006.safetensors", sharded / "old.safetensors")
    HuggingFaceFolder(sharded)


# The folder.


def test_a_missing_folder_is_refused(tmp_path: Path, refusal: Refuse) -> None:
    assert "nowhere is not a folder; expected one with config.json" in refusal(tmp_path / "nowhere")


def test_a_file_is_refused_as_a_folder(checkpoint: Path, refusal: Refuse) -> None:
    file = checkpoint / "model.safetensors"
    assert f"{file} is not a folder" in refusal(file)


def test_an_empty_folder_is_refused(tmp_path: Path, refusal: Refuse) -> None:
    (tmp_path / "empty").mkdir()
    message = refusal(tmp_path / "empty")
    assert "config.json is missing" in message
    assert "no *.safetensors file" in message


def test_a_config_that_is_not_json_is_refused(checkpoint: Path, refusal: Refuse) -> None:
    (checkpoint / "config.json").write_text("{", encoding="utf-8")
    message = refusal(checkpoint)
    assert "config.json is not valid JSON" in message
    assert message.count(str(checkpoint)) == 1


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "a.ckpt", "a.pkl"])
def test_pickled_weights_alone_are_refused_and_not_opened(
    checkpoint: Path, refusal: Refuse, name: str
) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / name)
    message = refusal(checkpoint)
    assert f"only pickled weights ({name})" in message
    assert "convert them to safetensors first" in message


def test_pickled_weights_beside_safetensors_are_left_alone(checkpoint: Path) -> None:
    (checkpoint / "pytorch_model.bin").write_bytes(b"\x80\x04boom.")
    HuggingFaceFolder(checkpoint).check_values()


def test_an_index_of_pickles_is_refused(sharded: Path, refusal: Refuse) -> None:
    (sharded / "pytorch_model.bin").write_bytes(b"")
    change_index(sharded, **{QUERY: "pytorch_model.bin"})
    assert "names pytorch_model.bin, which is not safetensors" in refusal(sharded)


# The tensors.


def test_missing_tensors_are_named(checkpoint: Path, refusal: Refuse) -> None:
    change_tensors(checkpoint, lambda tensors: (tensors.pop(QUERY), tensors.pop("lm_head.weight")))
    assert refusal(checkpoint) == f"{checkpoint}: 2 missing: lm_head.weight, {QUERY}"


def test_many_missing_tensors_are_counted(checkpoint: Path, refusal: Refuse) -> None:
    def keep_layers(tensors: Tensors) -> None:
        for name in list(tensors):
            if "layers.0" in name or "layers" not in name:
                del tensors[name]

    message = refusal(change_tensors(checkpoint, keep_layers))
    assert message == f"{checkpoint}: 16 missing, such as lm_head.weight"


def test_unexpected_tensors_are_named(checkpoint: Path, refusal: Refuse) -> None:
    bias = np.ones(24, np.float32)
    change_tensors(
        checkpoint,
        lambda tensors: tensors.update({"model.layers.1.self_attn.q_proj.bias": bias}),
    )
    message = refusal(checkpoint)
    assert message == f"{checkpoint}: 1 unexpected: model.layers.1.self_attn.q_proj.bias"


def test_a_tensor_in_two_files_is_refused(checkpoint: Path, refusal: Refuse) -> None:
    save_file({QUERY: np.ones((24, 12), np.float32)}, checkpoint / "extra.safetensors")
    message = refusal(checkpoint)
    assert f"{QUERY} is stored twice, in extra.safetensors and model.safetensors" in message


def test_a_tensor_in_two_indexed_files_is_refused(sharded: Path, refusal: Refuse) -> None:
    norm = np.ones(12, np.float32)
    save_file({QUERY: norm, "model.norm.weight": norm}, sharded / "z.safetensors")
    change_index(sharded, **{"model.norm.weight": "z.safetensors"})
    message = refusal(sharded)
    assert "2 tensors are stored twice, such as model" in message
    assert "safetensors and z.safetensors" in message


def test_a_tensor_twice_in_one_header_is_refused(checkpoint: Path, refusal: Refuse) -> None:
    file = checkpoint / "model.safetensors"
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = '"model.norm.weight":{"dtype":"F32","shape":[12],"data_offsets":[0,48]},'
    header = data[8 : 8 + size].decode().replace("{", "{" + entry, 1).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
    assert "model.norm.weight is stored twice in model.safetensors" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("name", "expected"),
    [(QUERY, [24, 12]), ("model.layers.0.mlp.down_proj.weight", [12, 20])],
)
def test_a_transposed_tensor_is_refused_with_both_shapes(
    checkpoint: Path, refusal: Refuse, name: str, expected: list[int]
) -> None:
    def transpose(tensors: Tensors) -> None:
        tensors[name] = np.ascontiguousarray(tensors[name].T)

    message = refusal(change_tensors(checkpoint, transpose))
    assert message == f"{checkpoint}: {name} has shape {expected[::-1]}, expected {expected}"


@pytest.mark.parametrize("dtype", ["int8", "float64"])
def test_other_types_are_refused(checkpoint: Path, refusal: Refuse, dtype: str) -> None:
    def cast(tensors: Tensors) -> None:
        tensors[QUERY] = tensors[QUERY].astype(dtype)

    assert f"{QUERY} is {dtype}; expected one of float32, float16, bfloat16" in refusal(
        change_tensors(checkpoint, cast)
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_non_finite_values_are_refused(
    tmp_path: Path, refusal: Refuse, dtype: str, value: float
) -> None:
    folder = write_checkpoint(tmp_path / "hf", dtype=dtype)

    def poison(tensors: Tensors) -> None:
        tensors[QUERY][3, 5] = value
        tensors["model.early_exit_gate.bias"][0] = value

    message = refusal(change_tensors(folder, poison))
    assert message == (
        f"{folder}: 2 tensors hold non-finite values, such as model.early_exit_gate.bias"
    )


def test_infinities_of_both_signs_do_not_cancel(checkpoint: Path, refusal: Refuse) -> None:
    def poison(tensors: Tensors) -> None:
        tensors[QUERY][0, 0], tensors[QUERY][0, 1] = np.inf, -np.inf

    assert "non-finite" in refusal(change_tensors(checkpoint, poison))


def test_the_largest_finite_values_are_accepted(checkpoint: Path) -> None:
    def enlarge(tensors: Tensors) -> None:
        tensors[QUERY][...] = np.finfo(np.float32).max

    HuggingFaceFolder(change_tensors(checkpoint, enlarge)).check_values()


# The files.


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(checkpoint: Path, refusal: Refuse, kept: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors is truncated or not safetensors" in refusal(checkpoint)


def test_a_truncated_shard_is_refused_by_its_name(sharded: Path, refusal: Refuse) -> None:
    file = sharded / "model-00002-of-00006.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    message = refusal(sharded)
    assert "model-00002-of-00006.safetensors is truncated" in message
    assert "5 missing, such as " in message


def test_a_link_to_nothing_is_refused(checkpoint: Path, refusal: Refuse) -> None:
    (checkpoint / "more.safetensors").symlink_to("blob-that-was-deleted")
    assert "more.safetensors cannot be read" in refusal(checkpoint)


@pytest.mark.parametrize(
    "file", ["../elsewhere.safetensors", "/tmp/elsewhere.safetensors", "sub/elsewhere.safetensors"]
)
def test_an_index_entry_outside_the_folder_is_refused(
    sharded: Path, refusal: Refuse, file: str
) -> None:
    norm = np.ones(12, np.float32)
    save_file({"model.norm.weight": norm}, sharded.parent / "elsewhere.safetensors")
    change_index(sharded, **{"model.norm.weight": file})
    assert f"{INDEX_FILE} points outside the folder: {file}" in refusal(sharded)


def test_an_index_entry_of_a_missing_file_is_refused(sharded: Path, refusal: Refuse) -> None:
    (sharded / "model-00003-of-00006.safetensors").unlink()
    assert f"{INDEX_FILE} names model-00003-of-00006.safetensors, which is missing" in refusal(
        sharded
    )


def test_an_index_entry_of_the_wrong_file_is_refused(sharded: Path, refusal: Refuse) -> None:
    change_index(sharded, **{QUERY: "model-00001-of-00006.safetensors"})
    assert (
        refusal(sharded) == f"{sharded}: {INDEX_FILE} places {QUERY} in "
        "model-00001-of-00006.safetensors, which does not hold it"
    )


@pytest.mark.parametrize("values", [{}, {"weight_map": ["a"]}, {"weight_map": {QUERY: 3}}])
def test_an_index_without_a_weight_map_is_refused(
    sharded: Path, refusal: Refuse, values: dict
) -> None:
    write_json(sharded / INDEX_FILE, values)
    assert f"{INDEX_FILE}: expected a weight_map" in refusal(sharded)


# The configuration.


@pytest.mark.parametrize("num_layers", [1, 3])
def test_a_layer_count_that_disagrees_is_refused(
    checkpoint: Path, refusal: Refuse, num_layers: int
) -> None:
    message = refusal(change_json(checkpoint / "config.json", num_hidden_layers=num_layers))
    assert f"config.json says {num_layers} layers and the tensors have 2" in message
    assert ("11 unexpected" if num_layers == 1 else "11 missing") in message


def test_a_llama_style_config_over_ouro_tensors_is_refused(
    checkpoint: Path, refusal: Refuse
) -> None:
    change_json(
        checkpoint / "config.json",
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        total_ut_steps=REMOVED,
        early_exit_threshold=REMOVED,
    )
    message = refusal(checkpoint)
    assert message.startswith("config.json describes a 'llama' model but the tensors are Ouro's")
    assert "take config.json from the Ouro checkpoint" in message
    assert "total_ut_steps" not in message


def test_a_true_llama_checkpoint_is_not_called_ouro(checkpoint: Path, refusal: Refuse) -> None:
    def remove_gate(tensors: Tensors) -> None:
        del tensors["model.early_exit_gate.weight"], tensors["model.early_exit_gate.bias"]

    change_tensors(checkpoint, remove_gate)
    message = refusal(change_json(checkpoint / "config.json", model_type="llama"))
    assert message.startswith("a model of the family llama (OuroForCausalLM), and only ouro ")


# Adapters.


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_adapter_files_are_refused(checkpoint: Path, refusal: Refuse, file: str) -> None:
    if file.endswith("json"):
        write_json(checkpoint / file, {"peft_type": "LORA"})
    else:
        save_file({"base_model.model.x.lora_A.weight": np.ones((2, 2))}, checkpoint / file)
    message = refusal(checkpoint)
    assert message == (
        f"a LoRA/PEFT adapter ({file}); merge it into its base model first: {checkpoint}"
    )


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.self_attn.q_proj.lora_A.weight",
        "model.layers.1.self_attn.q_proj.lora_B.default.weight",
        "model.layers.1.self_attn.q_proj.lora_magnitude_vector",
    ],
)
def test_adapter_names_are_refused(checkpoint: Path, refusal: Refuse, name: str) -> None:
    change_tensors(checkpoint, lambda tensors: tensors.update({name: tensors.pop(QUERY)}))
    message = refusal(checkpoint)
    assert f"LoRA/PEFT names such as {name}: merge the adapter" in message


# All of them.


def test_several_faults_come_in_one_message(sharded: Path, refusal: Refuse) -> None:
    (sharded / "model-00006-of-00006.safetensors").unlink()
    change_json(sharded / "config.json", num_hidden_layers=3, vocab_size=25)
    poisoned = sharded / "model-00005-of-00006.safetensors"
    tensors = read_checkpoint(sharded)
    names = [
        name
        for name, file in json.loads((sharded / INDEX_FILE).read_text())["weight_map"].items()
        if file == poisoned.name
    ]
    save_file({name: np.full_like(tensors[name], np.nan) for name in names}, poisoned)
    change_index(sharded, **{"model.norm.weight": "../out.safetensors"})
    message = refusal(sharded)
    for expected in (
        "model-00006-of-00006.safetensors, which is missing",
        "points outside the folder: ../out.safetensors",
        "config.json says 3 layers and the tensors have 2",
        " missing, such as model.layers.",
        "2 tensors have another shape, such as lm_head.weight [24, 12], expected [25, 12]",
        f"{len(names)} tensors hold non-finite values, such as ",
    ):
        assert expected in message
    assert f"{sharded} cannot be used, for " in message


def test_an_unsupported_config_does_not_hide_faults_of_the_files(
    checkpoint: Path, refusal: Refuse
) -> None:
    change_json(checkpoint / "config.json", rope_scaling={"factor": 2.0}, hidden_act="gelu")
    (checkpoint / "cut.safetensors").write_bytes(b"\x08")
    message = refusal(checkpoint)
    for expected in ("rope_scaling", "hidden_act", "cut.safetensors is truncated"):
        assert expected in message


def test_the_folder_is_checked_before_values_are_read(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda tensors: tensors[QUERY].fill(np.nan))
    folder = HuggingFaceFolder(checkpoint)
    with pytest.raises(LoopedError, match="non-finite"):
        folder.check_values()


def test_the_fixture_shapes_are_those_of_the_test_helper(checkpoint: Path) -> None:
    stored = {name: tensor.shape for name, tensor in read_checkpoint(checkpoint).items()}
    assert stored == tensor_shapes(small_config())
