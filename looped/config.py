"""What a checkpoint's config.json says, as one frozen and complete object.

Every key of the file is used, on a list of keys that are ignored on purpose, or an error: a key
that changes the arithmetic and goes unnoticed gives fluent nonsense.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from . import quantisation
from .errors import LoopedError, brief
from .family import ARCHITECTURE, FAMILY, check_family
from .model_files import read_json

logger = logging.getLogger(__name__)

# Keys without influence on inference. Dropout is a training setting, the tokenizer has the
# token ids, the rest is bookkeeping of the library that wrote the file.
IGNORED_KEYS = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "eos_token_id",  # looped.text.stop_ids reads it, from this file and two others
        "hidden_dropout",
        "initializer_range",
        "max_window_layers",
        "output_attentions",
        "output_hidden_states",
        "pad_token_id",
        "return_dict",
        "transformers_version",
        "use_cache",
    }
)

# Fine-tunes add keys of their own under a prefix; they describe how the weights were trained.
IGNORED_PREFIXES = ("rltt_",)

# Keys that change the arithmetic: the values that mean "what Ouro does". Anything else is refused.
SUPPORTED_VALUES: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False, None),
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False, None),
    "use_weighted_exit": (False, None),
    "early_exit_step": (None,),
}

DTYPES = ("float32", "float16", "bfloat16")
LAYER_FORMS = ("unrolled", "scanned")
"""How layers lie in a compiled step: code of their own, or one code over stacked weights."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and constants of a looped model. Letters are those of the code: L, E, H, K, D, P, V."""

    num_layers: int
    """L, layers in one loop."""
    hidden_size: int
    """E, width of a hidden row."""
    num_heads: int
    """H, query heads."""
    num_kv_heads: int
    """K, key and value heads; divides H."""
    head_dim: int
    """D; H * D need not equal E."""
    intermediate_size: int
    """Width of the SwiGLU's inner rows."""
    vocab_size: int
    """V, rows of the embedding and of the LM head."""
    num_loops: int
    """P, times the layers run at full depth; the KV cache has one plane for each."""
    max_position_embeddings: int
    """Longest sequence the checkpoint was made for, in tokens."""
    rms_norm_eps: float
    """Added to the variance in every norm."""
    rope_theta: float
    """Base of the rotary frequencies."""
    exit_threshold: float = 1.0
    """Cumulative exit probability at which a token stops looping; 1 never stops early."""
    dtype: str = "float32"
    """Type the weights are stored in, as config.json names it."""

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "intermediate_size",
            "vocab_size",
            "num_loops",
            "max_position_embeddings",
        ):
            if not _is_count(value := getattr(self, name)):
                raise LoopedError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < math.inf:
                raise LoopedError(f"{name} must be a positive number, got {value!r}")
        if not _is_number(self.exit_threshold) or not 0 <= self.exit_threshold <= 1:
            raise LoopedError(f"exit_threshold must be in 0 to 1, got {self.exit_threshold!r}")
        if self.num_heads % self.num_kv_heads:
            raise LoopedError(
                f"num_key_value_heads must divide num_attention_heads: "
                f"{self.num_heads} query heads, {self.num_kv_heads} key heads"
            )
        if self.head_dim % 2:
            raise LoopedError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if self.dtype not in DTYPES:
            raise LoopedError(f"torch_dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r}")

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model: each loop reuses the same L layers."""
        attention = (2 * self.num_heads + 2 * self.num_kv_heads) * self.head_dim * self.hidden_size
        layer = attention + 3 * self.intermediate_size * self.hidden_size + 4 * self.hidden_size
        gate_and_norm = 2 * self.hidden_size + 1
        return self.num_layers * layer + 2 * self.vocab_size * self.hidden_size + gate_and_norm

    def kv_values_per_token(self) -> int:
        """Numbers that one token's keys and values take over all planes and layers."""
        return self.num_loops * self.num_layers * 2 * self.num_kv_heads * self.head_dim

    def with_num_loops(self, num_loops: int | None) -> Self:
        """The same model run with another P, prompts included; None changes nothing.

        This is the one place where P is set: KV planes, capacity, exit defaults and the salt of
        the prefix cache all read `num_loops`.
        """
        if num_loops is None or num_loops == self.num_loops:
            return self
        if num_loops < 1:
            raise LoopedError(f"num_loops must be at least 1, got {num_loops}")
        if num_loops > self.num_loops:
            logger.warning(
                "running %d loops; the checkpoint was made for %d", num_loops, self.num_loops
            )
        return replace(self, num_loops=num_loops)

    def to_hugging_face(self) -> dict[str, Any]:
        """The keys of an Ouro config.json that says this; `from_hugging_face` reads it back."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": FAMILY,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "total_ut_steps": self.num_loops,
            "early_exit_threshold": self.exit_threshold,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "eos_token_id": 0,
            "torch_dtype": self.dtype,
        }

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Reads a config.json; raises LoopedError for a missing file or any unsupported content."""
        return cls.from_hugging_face(read_json(path), source=str(path))

    @classmethod
    def from_hugging_face(cls, values: Mapping[str, Any], *, source: str = "config.json") -> Self:
        """Reads the keys of an Ouro config.json.

        Args:
            values: the file's top-level object.
            source: names the file where it is of another kind of model altogether.

        Raises:
            ForeignCheckpointError: a model of another family, or a quantised one.
            LoopedError: naming every key that is missing, unknown or unsupported, at once.
        """
        check_family(values, source)
        quantisation.check_config(values, source)
        reader = _KeyReader(values)
        for name, supported in SUPPORTED_VALUES.items():
            reader.check_supported(name, supported)
        reader.check_model_type()
        reader.check_full_attention()
        num_heads = reader.count("num_attention_heads")
        hidden_size = reader.count("hidden_size")
        head_dim = reader.optional_count("head_dim")
        num_kv_heads = reader.optional_count("num_key_value_heads")
        fields = {
            "num_layers": reader.count("num_hidden_layers"),
            "hidden_size": hidden_size,
            "num_heads": num_heads,
            "num_kv_heads": num_heads if num_kv_heads is None else num_kv_heads,
            "head_dim": head_dim,
            "intermediate_size": reader.count("intermediate_size"),
            "vocab_size": reader.count("vocab_size"),
            "num_loops": reader.count("total_ut_steps"),
            "max_position_embeddings": reader.count("max_position_embeddings"),
            "rms_norm_eps": reader.required("rms_norm_eps"),
            "rope_theta": reader.rope_theta(),
            "exit_threshold": reader.exit_threshold(),
            "dtype": reader.dtype(),
        }
        reader.raise_problems()
        if fields["head_dim"] is None:
            fields["head_dim"] = hidden_size // num_heads
        return cls(**fields)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _other_types(layer_types: object) -> str:
    """What is wrong with a list of layer types: the types that it should not have."""
    if not isinstance(layer_types, list):
        return brief(repr(layer_types))
    others = sorted({repr(one) for one in layer_types if one != "full_attention"})
    return f"a list with {brief(', '.join(others))}"


class _KeyReader:
    """Hands out the keys of a config.json and remembers which were asked for and what was wrong."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._seen: set[str] = {"architectures", *quantisation.CONFIG_KEYS}
        self._missing: list[str] = []
        self._problems: list[str] = []

    def optional(self, name: str) -> Any:
        self._seen.add(name)
        return self._values.get(name)

    def required(self, name: str) -> Any:
        value = self.optional(name)
        if value is None:
            self._missing.append(name)
        return value

    def count(self, name: str) -> Any:
        self.required(name)
        return self.optional_count(name)

    def optional_count(self, name: str) -> Any:
        value = self.optional(name)
        if value is not None and not _is_count(value):
            self._problems.append(
                f"{name} must be a whole number of at least 1, got {brief(repr(value))}"
            )
        return value

    def check_supported(self, name: str, supported: tuple[object, ...]) -> None:
        self._seen.add(name)
        if name in self._values and self._values[name] not in supported:
            expected = " or ".join(repr(value) for value in supported)
            self._problems.append(
                f"{name} = {brief(repr(self._values[name]))} is not supported, only {expected} is"
            )

    def check_model_type(self) -> None:
        """That the family is named at all; another one has been refused before."""
        if self.optional("model_type") is None:
            self._problems.append(f"model_type is missing; {FAMILY!r} is supported")

    def check_full_attention(self) -> None:
        layer_types = self.optional("layer_types") or []
        is_full = isinstance(layer_types, list) and all(
            layer_type == "full_attention" for layer_type in layer_types
        )
        if not is_full:
            self._problems.append(
                f"layer_types is {_other_types(layer_types)}; only a list of 'full_attention' is "
                "supported"
            )

    def rope_theta(self) -> float | None:
        """Theta, at the top level or (transformers 5) inside `rope_parameters`."""
        nested = self.optional("rope_parameters") or {}
        if not isinstance(nested, dict):
            self._problems.append(f"rope_parameters must be an object, got {brief(repr(nested))}")
            return None
        rope_type = nested.get("rope_type", "default")
        unknown = sorted(set(nested) - {"rope_theta", "rope_type"})
        if rope_type != "default" or unknown:
            self._problems.append(
                f"rope_parameters = {brief(repr(nested))} is not supported, only rope_theta with "
                "rope_type 'default' is (no rope scaling)"
            )
        theta, nested_theta = self.optional("rope_theta"), nested.get("rope_theta")
        if theta is None and nested_theta is None:
            self._problems.append(
                "rope_theta is missing, at the top level and in rope_parameters; it has no default"
            )
        elif None not in (theta, nested_theta) and theta != nested_theta:
            self._problems.append(
                f"rope_theta is {brief(theta)} at the top level and {brief(nested_theta)} in "
                "rope_parameters"
            )
        return theta if theta is not None else nested_theta

    def exit_threshold(self) -> float:
        threshold = self.optional("early_exit_threshold")
        if threshold is None:
            return 1.0
        if not _is_number(threshold) or not 0 <= threshold <= 1:
            self._problems.append(
                f"early_exit_threshold must be in 0 to 1, got {brief(repr(threshold))}"
            )
            return 1.0
        return float(threshold)

    def dtype(self) -> str:
        older, newer = self.optional("torch_dtype"), self.optional("dtype")
        return str(newer or older or "float32").removeprefix("torch.")

    def raise_problems(self) -> None:
        unknown = set(self._values) - self._seen - IGNORED_KEYS
        extras = sorted(name for name in unknown if name.startswith(IGNORED_PREFIXES))
        if extras:
            logger.info("config.json: ignoring the fine-tune's own keys %s", ", ".join(extras))
        if others := sorted(unknown - set(extras)):
            more = f" and {len(others) - 4} more" if len(others) > 4 else ""
            self._problems.append(
                f"unknown keys {brief(', '.join(others[:4]))}{more}: remove them if they do not "
                "change inference"
            )
        if self._missing:
            verb = "is" if len(self._missing) == 1 else "are"
            self._problems.append(f"{', '.join(self._missing)} {verb} missing")
        if self._problems:
            raise LoopedError("config.json: " + "; ".join(self._problems))
