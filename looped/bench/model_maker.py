"""Models with random weights in the shapes that are measured, as Hugging Face checkpoints.

Speed depends on shapes alone, so a benchmark needs no trained weights. They are drawn so that
nothing degenerates: norms near 1, matrices of unit gain, and a gate that spreads exits over the
loops.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from looped.config import ModelConfig
from looped.convert.shards import write_shards
from looped.convert.staging import staged_folder
from looped.errors import UsageError
from looped.models import (
    DEFAULT_MODEL_TYPE,
    EMBEDDING,
    GATE_BIAS,
    family_of,
    num_parameters,
    parameter_shapes,
)

logger = logging.getLogger(__name__)

SHAPES = {
    "small": ModelConfig(
        model_type=DEFAULT_MODEL_TYPE,
        num_layers=8,
        hidden_size=512,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        intermediate_size=1408,
        vocab_size=4096,
        num_loops=4,
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
    ),
    "1.4b": ModelConfig(
        model_type=DEFAULT_MODEL_TYPE,
        num_layers=24,
        hidden_size=2048,
        num_heads=16,
        num_kv_heads=16,
        head_dim=128,
        intermediate_size=5632,
        vocab_size=49152,
        num_loops=4,
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
    ),
}
"""By the name that `looped bench make-model --shape` takes. `1.4b` is Ouro-1.4B's."""
DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
MAX_SHARD_BYTES = 10**9
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MEAN_GATE = -1.0
"""A hazard of about 0.3 a loop: at threshold 0.5 tokens leave after loops 1 to 4."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def make_model(
    folder: Path, config: ModelConfig, *, dtype: str = "bfloat16", seed: int = 0
) -> None:
    """Writes config.json, safetensors and a byte-level tokenizer, holding one shard in memory.

    Args:
        folder: to make.
        config: the shape, at least 259 tokens wide for the tokenizer.
        dtype: "float32" or "bfloat16", of the stored weights.
        seed: of the weights; equal ones give equal files.

    Raises:
        UsageError: the folder exists, or the type or vocabulary does not do.
    """
    if folder.exists() or folder.is_symlink():
        raise UsageError(f"{folder} exists; choose another name")
    if dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    num_tokens = len(SPECIAL_TOKENS) + 256
    if config.vocab_size < num_tokens:
        raise UsageError(
            f"vocab_size must be at least {num_tokens}, special tokens and bytes, got "
            f"{config.vocab_size}"
        )
    config = replace(config, dtype=dtype)
    family = family_of(config)
    shapes = parameter_shapes(config)
    names = {family.tensor_names.hugging_face_name(name): name for name in shapes}
    rng = np.random.default_rng(seed)
    with staged_folder(folder, source=None, overwrite=False) as staged:
        write_shards(
            staged,
            {theirs: shapes[name] for theirs, name in names.items()},
            DTYPES[dtype],
            lambda theirs: random_tensor(rng, names[theirs], shapes[names[theirs]]).astype(
                DTYPES[dtype]
            ),
            description="making weights",
            max_shard_bytes=MAX_SHARD_BYTES,
        )
        _write_json(staged / "config.json", family.write_config(config))
        byte_tokenizer().save(str(staged / "tokenizer.json"))
        _write_json(
            staged / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": SPECIAL_TOKENS[0],
                "chat_template": CHAT_TEMPLATE,
            },
        )
    logger.info("made %s: %d random parameters, %s", folder, num_parameters(config), dtype)


def random_tensor(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Float32 weights of a tensor, by our name for it.

    Norms 1 + 0.1 z, the gate's bias -1, the embedding z, matrices z / sqrt(inputs), with z drawn
    from N(0, 1).
    """
    if name == GATE_BIAS:
        return np.full(shape, MEAN_GATE, np.float32)
    values = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return 1 + np.float32(0.1) * values
    if name == EMBEDDING:
        return values
    values *= np.float32(shape[-1] ** -0.5)
    return values


def byte_tokenizer() -> Tokenizer:
    """A token for every byte, behind the special ones; ids past them have no text."""
    tokens = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    return tokenizer


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
