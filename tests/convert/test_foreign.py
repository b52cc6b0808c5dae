"""Folders that hold something else: every command says what it is, in one line, and writes nothing.

Each fault is made in a copy of the fixture. The line is read as the command line prints it.
"""

import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import (
    FIXTURES,
    INDEX_FILE,
    Tensors,
    change_json,
    change_tensors,
    copy_fixture,
    every_file,
    read_checkpoint,
    write_checkpoint,
    write_json,
)
from command_line import looped
from safetensors.numpy import save_file

from looped.convert import ConvertedFolder, convert_checkpoint
from looped.errors import ForeignCheckpointError

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 12345\n"
)
QUERY = "model.layers.0.self_attn.q_proj"

Change = Callable[[Path], object]


def config(**changes: Any) -> Change:
    return lambda folder: change_json(folder / "config.json", **changes)


def tensors(change: Callable[[Tensors], object]) -> Change:
    return lambda folder: change_tensors(folder, change)


def matrices(stored: Tensors) -> list[str]:
    return [name for name in stored if name.endswith("_proj.weight")]


def pointer(*names: str) -> Change:
    def replace(folder: Path) -> None:
        for name in names:
            (folder / name).write_text(POINTER)

    return replace


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


def beside(stored: Tensors, **forms: np.ndarray[Any, Any]) -> None:
    """Puts tensors of these endings beside every matrix, or in place of one that is called so."""
    for name in matrices(stored):
        for ending, tensor in forms.items():
            stored[f"{name.removesuffix('.weight')}.{ending}"] = tensor.copy()


def to_gptq(stored: Tensors) -> None:
    packed = np.ones((8, 64), np.int32)
    beside(stored, qweight=packed, qzeros=packed, scales=np.ones((1, 64), np.float16))
    for name in matrices(stored):
        del stored[name]


def to_fp8(stored: Tensors) -> None:
    for name in matrices(stored):
        stored[name] = stored[name].astype(ml_dtypes.float8_e4m3fn)
    beside(stored, weight_scale_inv=np.ones((1, 1), np.float32))


def to_mlx(stored: Tensors) -> None:
    scales = np.ones((64, 1), np.float16)
    beside(stored, weight=np.ones((64, 8), np.uint32), scales=scales, biases=scales)


def to_nf4(stored: Tensors) -> None:
    beside(stored, weight=np.ones((2048, 1), np.uint8))
    for name in matrices(stored):
        stored[f"{name}.absmax"] = np.ones(64, np.float32)
        stored[f"{name}.quant_state.bitsandbytes__nf4"] = np.ones(16, np.uint8)


def to_packed(stored: Tensors) -> None:
    beside(stored, weight_packed=np.ones((64, 8), np.int32), weight_scale=np.ones(64, np.float32))
    for name in matrices(stored):
        del stored[name]


def to_int8(stored: Tensors) -> None:
    for name in matrices(stored):
        stored[name] = np.ones(stored[name].shape, np.int8)


def to_prefixed(stored: Tensors) -> None:
    for name in list(stored):
        stored[f"_orig_mod.module.{name}"] = stored.pop(name)


def to_transposed(stored: Tensors) -> None:
    for name in matrices(stored):
        stored[name] = np.ascontiguousarray(stored[name][:, :32])


def to_nan(stored: Tensors) -> None:
    for tensor in stored.values():
        tensor[...] = np.nan


def to_gguf(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "ouro-q4_k_m.gguf").write_bytes(b"GGUF\x03\0\0\0")


def to_adapter(folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (folder / name).unlink()
    write_json(folder / "adapter_config.json", {"peft_type": "LORA"})
    save_file({"base_model.model.x": np.ones(2)}, folder / "adapter_model.safetensors")


def to_pickles(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for number in range(1, 31):
        (folder / f"pytorch_model-{number:05}-of-00030.bin").write_bytes(b"\x80\x04boom.")


def to_indexed(folder: Path) -> Path:
    """The weights behind an index, a file for each that is not there."""
    weight_map = {
        name: f"model-{number:05}-of-00060.safetensors"
        for number, name in enumerate(read_checkpoint(folder), start=1)
    }
    write_json(folder / INDEX_FILE, {"metadata": {}, "weight_map": weight_map})
    return folder


def to_pointed_shards(folder: Path) -> None:
    weight_map = json.loads((to_indexed(folder) / INDEX_FILE).read_text())["weight_map"]
    pointer(*set(weight_map.values()))(folder)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
QUANTISED = "a quantised checkpoint ("
FAMILY = "a model of the family "

FAULTS: dict[str, tuple[Change, str]] = {
    "fp8": (tensors(to_fp8), QUANTISED + "float8_e4m3, with tensors such as model.layers."),
    "fp8 config": (config(quantization_config={"quant_method": "fp8"}), QUANTISED + "fp8)"),
    "gptq": (tensors(to_gptq), QUANTISED + "GPTQ or AWQ, with tensors such as model.layers."),
    "gptq config": (config(quantization_config=GPTQ), QUANTISED + "gptq, 4 bits)"),
    "awq config": (
        both(
            config(quantization_config=GPTQ | {"quant_method": "awq"}, rope_scaling={"a": 1}),
            tensors(to_gptq),
        ),
        QUANTISED + "awq, 4 bits)",
    ),
    "nf4": (tensors(to_nf4), QUANTISED + "bitsandbytes, with tensors such as "),
    "nf4 config": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        QUANTISED + "bitsandbytes, 4 bits)",
    ),
    "mlx": (tensors(to_mlx), QUANTISED + "MLX, with tensors such as "),
    "mlx config": (
        config(quantization={"group_size": 64}, quantization_config={"group_size": 64}),
        QUANTISED + "MLX)",
    ),
    "compressed-tensors": (tensors(to_packed), QUANTISED + "compressed-tensors, with tensors "),
    "compressed-tensors config": (
        config(compression_config={"config_groups": {str(i): {} for i in range(99)}}),
        QUANTISED + "compression_config)",
    ),
    "no quantisation object": (config(quantization="4bit"), QUANTISED + "quantization = '4bit')"),
    "gguf": (to_gguf, "a GGUF checkpoint (llama.cpp's form)"),
    "gguf without config": (
        both(to_gguf, lambda folder: (folder / "config.json").unlink()),
        "a GGUF checkpoint (llama.cpp's form)",
    ),
    "pointer weights": (
        pointer("model.safetensors"),
        "a Git LFS pointer in place of model.safetensors: run `git lfs pull` in ",
    ),
    "pointer tokenizer": (
        pointer("tokenizer.json"),
        "a Git LFS pointer in place of tokenizer.json: run `git lfs pull` in ",
    ),
    "pointer config": (
        pointer("config.json"),
        "a Git LFS pointer in place of config.json: run `git lfs pull` in ",
    ),
    "pointer index": (
        both(to_indexed, pointer(INDEX_FILE)),
        f"a Git LFS pointer in place of {INDEX_FILE}: run `git lfs pull` in ",
    ),
    "pointer template": (
        pointer("chat_template.jinja"),
        "a Git LFS pointer in place of chat_template.jinja: run `git lfs pull` in ",
    ),
    "pointer files": (
        pointer("config.json", "tokenizer.json", "generation_config.json", "model.safetensors"),
        "Git LFS pointers in place of 3 files, such as config.json: run `git lfs pull` in ",
    ),
    "pointer shards": (
        to_pointed_shards,
        "Git LFS pointers in place of 38 files, such as model-00001-of-00060.safetensors: run ",
    ),
    "llama": (
        both(
            config(model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=True),
            tensors(lambda stored: stored.pop("model.early_exit_gate.weight")),
            tensors(lambda stored: stored.pop("model.early_exit_gate.bias")),
        ),
        FAMILY + "llama (LlamaForCausalLM), and only ouro (ByteDance's Ouro and its fine-tunes)",
    ),
    "qwen2 quantised": (
        both(
            lambda folder: write_json(
                folder / "config.json",
                {"model_type": "qwen2", "architectures": None, "quantization_config": GPTQ},
            ),
            tensors(to_gptq),
            tensors(lambda stored: [stored.pop(name) for name in list(stored) if "gate" in name]),
        ),
        FAMILY + "qwen2, and only ouro ",
    ),
    "a class alone": (
        both(
            lambda folder: write_json(folder / "config.json", {"_class_name": "UNet2D" * 99}),
            tensors(lambda stored: [stored.pop(name) for name in list(stored) if "gate" in name]),
        ),
        FAMILY + "UNet2DUNet2D",
    ),
    "adapter": (to_adapter, "a LoRA/PEFT adapter (adapter_config.json); merge it into its base"),
}
"""How a copy of the fixture becomes each, and how its one line begins."""

REASONS: dict[str, tuple[Change, str]] = {
    "int8": (
        tensors(to_int8),
        "21 tensors are int8, such as model.layers.0.mlp.down_proj.weight; expected one of float",
    ),
    "a prefix": (tensors(to_prefixed), "38 missing, such as lm_head.weight; 38 unexpected, such "),
    "misshaped": (
        tensors(to_transposed),
        "21 tensors have another shape, such as model.layers.0.mlp.down_proj.weight [64, 32], exp",
    ),
    "nan": (tensors(to_nan), "38 tensors hold non-finite values, such as "),
    "pickles": (to_pickles, "only pickled weights (pytorch_model-00001-of-00030.bin and 29 more)"),
    "missing shards": (
        to_indexed,
        "names model-00001-of-00060.safetensors and 37 more, which is missing",
    ),
    "long values": (
        config(
            rope_scaling={"short_factor": list(range(64)), "long_factor": list(range(64))},
            layer_types=["sliding_attention", "full_attention"] * 24,
        ),
        "layer_types is a list with 'sliding_attention'",
    ),
    "many keys": (
        config(**{f"unknown_{number}": number for number in range(40)}),
        "unknown keys unknown_0, unknown_1, unknown_10, unknown_11 and 36 more: ",
    ),
}
"""Faults of one kind in a folder that is Ouro's, and what says so."""


def refused(folder: Path, command: str) -> str:
    """The one line of a command that reads a folder that is not served."""
    name = folder.name  # beside it: how long a line is does not depend on where tests run
    arguments = {
        "convert": [name, "out"],
        "inspect": [name],
        "generate": ["--model", name, "--prompt-ids", "3,4,5", "--max-tokens", 1],
        "serve": ["--model", name, "--port", 0],
    }[command]
    before = every_file(folder.parent)
    with chdir(folder.parent):
        done = looped("--quiet", command, *arguments, check=False)
    assert every_file(folder.parent) == before
    assert done.returncode == 1, done.stdout
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert len(line) <= 300
    return line.removeprefix("looped: error: ")


@pytest.mark.parametrize("command", ["convert", "inspect", "generate", "serve"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_words_say_what_a_folder_is(tmp_path: Path, fault: str, command: str) -> None:
    change, words = FAULTS[fault]
    folder = copy_fixture(tmp_path / "model")
    change(folder)
    line = refused(folder, command)
    assert line.startswith(words)
    assert "num_hidden_layers" not in line
    assert "remove them" not in line
    assert folder.name in line


@pytest.mark.parametrize("command", ["convert", "generate"])
@pytest.mark.parametrize("fault", REASONS)
def test_reasons_of_one_kind_are_one(tmp_path: Path, fault: str, command: str) -> None:
    change, words = REASONS[fault]
    folder = copy_fixture(tmp_path / "model")
    change(folder)
    assert words in refused(folder, command)


@pytest.mark.parametrize("command", ["convert", "inspect", "generate"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ouro.gguf", "a GGUF checkpoint (llama.cpp's form), and only safetensors "),
        ("model.safetensors", "model.safetensors is not a folder; expected one with config.json"),
    ],
)
def test_a_file_is_not_a_folder(tmp_path: Path, name: str, words: str, command: str) -> None:
    file = tmp_path / name
    file.write_bytes(b"GGUF\x03\0\0\0" if name.endswith("gguf") else b"\x08")
    assert words in refused(file, command)


def test_a_pointer_inside_a_converted_folder_is_found(tmp_path: Path) -> None:
    convert_checkpoint(write_checkpoint(tmp_path / "source"), tmp_path / "model")
    file = next(path for path in (tmp_path / "model" / "parameters").rglob("*") if path.is_file())
    file.write_text(POINTER)
    with pytest.raises(ForeignCheckpointError, match="a Git LFS pointer in place of " + file.name):
        ConvertedFolder(tmp_path / "model")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.safetensors"])
def test_a_pointer_in_place_of_a_file_that_is_not_read_is_let_be(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "model", max_shard_bytes=3000)
    pointer(name)(folder)
    convert_checkpoint(folder, tmp_path / "out")


@pytest.mark.parametrize("key", ["quantization_config", "quantization", "compression_config"])
@pytest.mark.parametrize("value", [None, {}])
def test_an_empty_quantisation_is_none(tmp_path: Path, key: str, value: object) -> None:
    folder = copy_fixture(tmp_path / "model")
    change_json(folder / "config.json", **{key: value})
    assert looped("inspect", folder, "--json").stdout == (
        looped("inspect", FIXTURES / "ouro-tiny", "--json").stdout
    )
