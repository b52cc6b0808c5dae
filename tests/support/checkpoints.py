"""Hugging Face Ouro checkpoints for tests: random ones of any shape, and copies of a fixture.

Tensor names and shapes are written out here by hand, from the published checkpoints, so that an
error in a naming table or `parameter_shapes` cannot hide in the test data too.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
INDEX_FILE = "model.safetensors.index.json"
NUMPY_DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
REMOVED = object()
"""For `change_json`: takes the key away."""

Tensors = dict[str, np.ndarray[Any, Any]]
Refuse = Callable[..., str]
"""The `refusal` fixture of tests/convert."""


def small_config(**changes: Any) -> dict[str, Any]:
    """A config.json of two tiny layers, grouped-query and with heads wider than the hidden row."""
    values: dict[str, Any] = {
        "architectures": ["OuroForCausalLM"],
        "model_type": "ouro",
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-06,
        "early_exit_threshold": 1.0,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
        "torch_dtype": "float32",
        "total_ut_steps": 4,
        "vocab_size": 24,
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
    }
    return values | changes


def published_config(num_layers: int) -> dict[str, Any]:
    """config.json of Ouro-1.4B (24 layers) or Ouro-2.6B (48), with every key that it has."""
    return {
        "architectures": ["OuroForCausalLM"],
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_ouro.OuroConfig",
            "AutoModel": "modeling_ouro.OuroModel",
            "AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM",
        },
        "bos_token_id": 1,
        "eos_token_id": 2,
        "early_exit_threshold": 1.0,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 5632,
        "layer_types": ["full_attention"] * num_layers,
        "max_position_embeddings": 65536,
        "max_window_layers": num_layers,
        "model_type": "ouro",
        "num_attention_heads": 16,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "total_ut_steps": 4,
        "transformers_version": "4.55.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 49152,
    }


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's names and shapes of an Ouro checkpoint's tensors."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "lm_head.weight": (config["vocab_size"], width),
        "model.early_exit_gate.bias": (1,),
        "model.early_exit_gate.weight": (1, width),
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (width,),
            f"{prefix}.input_layernorm_2.weight": (width,),
            f"{prefix}.mlp.down_proj.weight": (width, inner),
            f"{prefix}.mlp.gate_proj.weight": (inner, width),
            f"{prefix}.mlp.up_proj.weight": (inner, width),
            f"{prefix}.post_attention_layernorm.weight": (width,),
            f"{prefix}.post_attention_layernorm_2.weight": (width,),
            f"{prefix}.self_attn.k_proj.weight": (key, width),
            f"{prefix}.self_attn.o_proj.weight": (width, query),
            f"{prefix}.self_attn.q_proj.weight": (query, width),
            f"{prefix}.self_attn.v_proj.weight": (key, width),
        }
    return shapes


def random_tensors(
    config: dict[str, Any], *, dtype: str = "float32", seed: int = 0
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every tensor with random, asymmetric values, one at a time."""
    rng = np.random.default_rng(seed)
    for name, shape in tensor_shapes(config).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        yield name, values.astype(NUMPY_DTYPES[dtype])


def write_checkpoint(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    dtype: str = "float32",
    max_shard_bytes: int | None = None,
    seed: int = 0,
) -> Path:
    """Makes a random checkpoint, holding no more than one shard in memory.

    Args:
        folder: to make.
        config: its config.json; `torch_dtype` is set to `dtype`.
        dtype: "float32", "float16" or "bfloat16".
        max_shard_bytes: None writes one file; else several with an index. A larger tensor gets a
            file of its own.
        seed: of the values.
    """
    config = (config or small_config()) | {"torch_dtype": dtype}
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    itemsize = NUMPY_DTYPES[dtype].itemsize
    tensors = random_tensors(config, dtype=dtype, seed=seed)
    if max_shard_bytes is None:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    shards: list[list[str]] = [[]]
    room = max_shard_bytes
    for name, shape in tensor_shapes(config).items():
        size = prod(shape) * itemsize
        if shards[-1] and size > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(name)
        room -= size
    weight_map = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(dict(next(tensors) for _ in names), folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    write_json(folder / INDEX_FILE, {"metadata": {}, "weight_map": weight_map})
    return folder


def read_checkpoint(folder: Path) -> Tensors:
    """Every tensor of a Hugging Face folder, of all its files."""
    return {
        name: tensor
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def copy_fixture(destination: Path, name: str = "ouro-tiny") -> Path:
    """A fixture's checkpoint and tokenizer without its goldens, to be changed at will."""
    ignored = shutil.ignore_patterns("golden.*")
    return Path(shutil.copytree(FIXTURES / name, destination, ignore=ignored))


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Lets `change` edit the tensors of a folder with one file; returns the folder."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def change_json(file: Path, **changes: Any) -> Path:
    """Sets or removes (`REMOVED`) keys of a JSON file; returns the folder that it is in."""
    values = json.loads(file.read_text(encoding="utf-8")) | changes
    write_json(file, {key: value for key, value in values.items() if value is not REMOVED})
    return file.parent


def write_json(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def assert_same_bits(got: Tensors, expected: Tensors) -> None:
    """The same names, types, shapes and bits."""
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert got[name].dtype == tensor.dtype, name
        assert got[name].shape == tensor.shape, name
        assert got[name].tobytes() == tensor.tobytes(), name


def every_file(folder: Path) -> dict[Path, bytes | None]:
    """Everything below a folder, hidden or not, with the content of files."""
    return {
        path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))
    }


def flip_bit(folder: Path, tensor: np.ndarray[Any, Any]) -> None:
    """Flips one bit of a tensor in an Orbax checkpoint.

    It must have over 1024 bytes: smaller ones lie compressed in a tree node with a checksum.
    """
    content = tensor.tobytes()
    for file in (path for path in folder.rglob("*") if path.is_file()):
        data = bytearray(file.read_bytes())
        if (at := data.find(content)) >= 0:
            data[at + len(content) // 2] ^= 1
            file.write_bytes(bytes(data))
            return
    raise AssertionError("the tensor is not in these files, uncompressed")
