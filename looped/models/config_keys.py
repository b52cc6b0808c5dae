"""Reading a config.json key by key, so that none goes unnoticed and all faults come at once.

Every key of the file is used, on a list of keys that are ignored on purpose, or an error: a key
that changes the arithmetic and goes unnoticed gives fluent nonsense.
"""

import logging
from collections.abc import Mapping
from typing import Any

from looped.config import is_count, is_number
from looped.errors import LoopedError, brief

from . import quantisation

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


class ConfigKeys:
    """Hands out the keys of a config.json and remembers which were asked for and what was wrong.

    Args:
        values: the file's top-level object.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._seen: set[str] = {"architectures", "model_type", *quantisation.CONFIG_KEYS}
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
        if value is not None and not is_count(value):
            self.add_problem(
                f"{name} must be a whole number of at least 1, got {brief(repr(value))}"
            )
        return value

    def share(self, name: str, default: float) -> float:
        """A number in 0 to 1; the default where the key is absent or null."""
        value = self.optional(name)
        if value is None:
            return default
        if not is_number(value) or not 0 <= value <= 1:
            self.add_problem(f"{name} must be in 0 to 1, got {brief(repr(value))}")
            return default
        return float(value)

    def check_supported(self, name: str, supported: tuple[object, ...]) -> None:
        """That a key, where it is there, says what the family's model does."""
        self._seen.add(name)
        if name in self._values and self._values[name] not in supported:
            expected = " or ".join(repr(value) for value in supported)
            self.add_problem(
                f"{name} = {brief(repr(self._values[name]))} is not supported, only {expected} is"
            )

    def check_full_attention(self) -> None:
        """That every layer attends to all positions."""
        layer_types = self.optional("layer_types") or []
        is_full = isinstance(layer_types, list) and all(
            layer_type == "full_attention" for layer_type in layer_types
        )
        if not is_full:
            self.add_problem(
                f"layer_types is {_other_types(layer_types)}; only a list of 'full_attention' is "
                "supported"
            )

    def decoder_fields(self) -> dict[str, Any]:
        """The fields of a `ModelConfig` that every decoder's configuration spells the same way.

        `head_dim` may be None: hidden_size / num_heads, which only a sound file has.
        """
        num_heads = self.count("num_attention_heads")
        num_kv_heads = self.optional_count("num_key_value_heads")
        return {
            "num_layers": self.count("num_hidden_layers"),
            "hidden_size": self.count("hidden_size"),
            "num_heads": num_heads,
            "num_kv_heads": num_heads if num_kv_heads is None else num_kv_heads,
            "head_dim": self.optional_count("head_dim"),
            "intermediate_size": self.count("intermediate_size"),
            "vocab_size": self.count("vocab_size"),
            "max_position_embeddings": self.count("max_position_embeddings"),
            "rms_norm_eps": self.required("rms_norm_eps"),
            "rope_theta": self._rope_theta(),
            "dtype": self._dtype(),
        }

    def add_problem(self, problem: str) -> None:
        """Remembers a fault, for `raise_problems`."""
        self._problems.append(problem)

    def raise_problems(self, ignored_prefixes: tuple[str, ...] = ()) -> None:
        """LoopedError with all that was wrong, keys that nobody asked for among it.

        Args:
            ignored_prefixes: of keys that fine-tunes add about how they were trained.
        """
        unknown = set(self._values) - self._seen - IGNORED_KEYS
        extras = sorted(name for name in unknown if name.startswith(ignored_prefixes))
        if extras:
            logger.info("config.json: ignoring the fine-tune's own keys %s", ", ".join(extras))
        if others := sorted(unknown - set(extras)):
            more = f" and {len(others) - 4} more" if len(others) > 4 else ""
            self.add_problem(
                f"unknown keys {brief(', '.join(others[:4]))}{more}: remove them if they do not "
                "change inference"
            )
        if self._missing:
            verb = "is" if len(self._missing) == 1 else "are"
            self.add_problem(f"{', '.join(self._missing)} {verb} missing")
        if self._problems:
            raise LoopedError("config.json: " + "; ".join(self._problems))

    def _rope_theta(self) -> float | None:
        """Theta, at the top level or (transformers 5) inside `rope_parameters`."""
        nested = self.optional("rope_parameters") or {}
        if not isinstance(nested, dict):
            self.add_problem(f"rope_parameters must be an object, got {brief(repr(nested))}")
            return None
        rope_type = nested.get("rope_type", "default")
        unknown = sorted(set(nested) - {"rope_theta", "rope_type"})
        if rope_type != "default" or unknown:
            self.add_problem(
                f"rope_parameters = {brief(repr(nested))} is not supported, only rope_theta with "
                "rope_type 'default' is (no rope scaling)"
            )
        theta, nested_theta = self.optional("rope_theta"), nested.get("rope_theta")
        if theta is None and nested_theta is None:
            self.add_problem(
                "rope_theta is missing, at the top level and in rope_parameters; it has no default"
            )
        elif None not in (theta, nested_theta) and theta != nested_theta:
            self.add_problem(
                f"rope_theta is {brief(theta)} at the top level and {brief(nested_theta)} in "
                "rope_parameters"
            )
        return theta if theta is not None else nested_theta

    def _dtype(self) -> str:
        older, newer = self.optional("torch_dtype"), self.optional("dtype")
        return str(newer or older or "float32").removeprefix("torch.")


def _other_types(layer_types: object) -> str:
    """What is wrong with a list of layer types: the types that it should not have."""
    if not isinstance(layer_types, list):
        return brief(repr(layer_types))
    others = sorted({repr(one) for one in layer_types if one != "full_attention"})
    return f"a list with {brief(', '.join(others))}"
