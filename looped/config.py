"""A model's shape and constants, as one frozen and complete object, whichever family it is of.

A family's reader in `looped.models` makes it from a checkpoint's config.json.
"""

import logging
import math
from dataclasses import dataclass, replace
from typing import Self

from .errors import LoopedError

logger = logging.getLogger(__name__)

DTYPES = ("float32", "float16", "bfloat16")
LAYER_FORMS = ("unrolled", "scanned")
"""How layers lie in a compiled step: code of their own, or one code over stacked weights."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape and constants of a looped model. Letters are those of the code: L, E, H, K, D, P, V."""

    model_type: str
    """Its family, as config.json names it; `looped.models.family_of` finds it."""
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
    has_gate: bool = True
    """Whether there is an exit gate; without one no token finds by itself that it may leave."""
    has_adjustable_loops: bool = True
    """Whether the model may run with another P than the checkpoint was made for."""
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
            if not is_count(value := getattr(self, name)):
                raise LoopedError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < math.inf:
                raise LoopedError(f"{name} must be a positive number, got {value!r}")
        if not is_number(self.exit_threshold) or not 0 <= self.exit_threshold <= 1:
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
        if not self.has_adjustable_loops:
            raise LoopedError(
                f"num_loops must be {self.num_loops}, got {num_loops}: models of the family "
                f"{self.model_type} run as many loops as they were made for; leave it out"
            )
        if num_loops > self.num_loops:
            logger.warning(
                "running %d loops; the checkpoint was made for %d", num_loops, self.num_loops
            )
        return replace(self, num_loops=num_loops)


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_number(value: object) -> bool:
    """Whether a value is a number, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
