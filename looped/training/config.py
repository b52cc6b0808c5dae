"""Options of training runs, as a user gives them; the defaults are the demo model's recipe."""

import math
from dataclasses import dataclass

from looped.config import ModelConfig
from looped.errors import UsageError
from looped.models import DEFAULT_MODEL_TYPE


@dataclass(frozen=True, kw_only=True)
class ShapeConfig:
    """The model to pre-train, of the default family."""

    num_layers: int = 1
    """L, layers in one loop."""
    hidden_size: int = 192
    """E, width of a row."""
    num_heads: int = 6
    """H, attention heads; keys and values have as many."""
    head_dim: int = 32
    """D, width of a head."""
    intermediate_size: int = 512
    """Width of the SwiGLU's inner rows."""
    num_loops: int = 4
    """P, times that the layers run."""
    max_position_embeddings: int = 512
    """Longest sequence that the model's configuration allows."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The shape with a tokenizer's vocabulary; raises LoopedError for what cannot be."""
        return ModelConfig(
            model_type=DEFAULT_MODEL_TYPE,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            vocab_size=vocab_size,
            num_loops=self.num_loops,
            max_position_embeddings=self.max_position_embeddings,
            rms_norm_eps=1e-6,
            rope_theta=self.rope_theta,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Batches and optimiser of any stage: AdamW, warm-up, then a cosine."""

    steps: int = 4500
    """Updates of the whole run."""
    batch_size: int = 24
    """Rows of a batch."""
    sequence_length: int = 128
    """Tokens of a row, into which several examples are packed."""
    learning_rate: float = 3e-3
    """Peak, after the warm-up."""
    warmup_steps: int = 100
    """Updates of linear warm-up."""
    final_learning_rate: float = 0.05
    """Share of the peak at which the cosine ends."""
    max_gradient_norm: float = 1.0
    """Longer gradients are scaled down to this."""
    prompt_weight: float = 0.0
    """Loss weight of prompt tokens; a completion's weigh 1."""
    seed: int = 0
    """Of first weights and of batches."""
    checkpoint_interval: int = 100
    """Updates between two checkpoints, of which the last two are kept."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "sequence_length", "checkpoint_interval"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        _check_positive(self, "learning_rate", "max_gradient_norm")
        _check_not_negative(self, "warmup_steps", "prompt_weight")
        if not 0 <= self.final_learning_rate <= 1:
            raise UsageError(
                f"final_learning_rate must be in 0 to 1, got {self.final_learning_rate}; it is a "
                "share of --learning-rate"
            )
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"seed must be in 0 to {2**32 - 1}, got {self.seed}")
        if self.warmup_steps >= self.steps:
            raise UsageError(
                f"warmup_steps must be below steps: {self.warmup_steps} >= {self.steps}; "
                "lower --warmup-steps"
            )


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(TrainingConfig):
    """First stage."""

    entropy_weight: float = 0.03
    """Beta: how strongly the exit distribution is pulled towards a uniform one."""
    weight_decay: float = 0.1
    """Of matrices; vectors have none."""
    exit_share: float = 0.25
    """Share of rows in which tokens leave early and their last keys and values stay, as in an
    engine; below 1. 0: every token runs every loop."""
    exit_loss: float = 0.1
    """Nats below which a token leaves in these rows."""
    rematerialise: bool = False
    """Keep only the rows between loops for the gradient: less memory, a third more work."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_not_negative(self, "entropy_weight", "weight_decay", "exit_loss")
        if not 0 <= self.exit_share < 1:
            raise UsageError(
                f"exit_share must be at least 0 and below 1, got {self.exit_share}; the other rows "
                "are what the losses of each loop are reported of"
            )


@dataclass(frozen=True, kw_only=True)
class FrozenBackboneConfig(TrainingConfig):
    """Stages in which a linear gate learns beside a model that stays as it is."""

    steps: int = 300
    """Updates of the whole run."""
    learning_rate: float = 1e-2
    """Peak, after the warm-up."""
    warmup_steps: int = 20
    """Updates of linear warm-up."""
    dtype: str | None = None
    """Type to run the backbone in, float32 or bfloat16; the gate is float32. None: the
    checkpoint's."""


@dataclass(frozen=True, kw_only=True)
class GateConfig(FrozenBackboneConfig):
    """Second stage: the exit gate."""

    slope: float = 1000.0
    """How sharply the target turns from leaving to going on, per nat of what later loops gain."""
    margin: float = 0.003
    """Nats to be gained at which it is even odds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_positive(self, "slope")
        _check_not_negative(self, "margin")


@dataclass(frozen=True, kw_only=True)
class LookaheadConfig(FrozenBackboneConfig):
    """A gate that looks one loop ahead, taught by the model's own."""

    learning_rate: float = 1e-3
    """Peak, after the warm-up."""
    weight_decay: float = 0.0
    """Of the heads' weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_not_negative(self, "weight_decay")


def _check_positive(config: TrainingConfig, *names: str) -> None:
    for name in names:
        if not 0 < (value := getattr(config, name)) < math.inf:
            raise UsageError(f"{name} must be above 0 and finite, got {value}")


def _check_not_negative(config: TrainingConfig, *names: str) -> None:
    for name in names:
        if not 0 <= (value := getattr(config, name)) < math.inf:
            raise UsageError(f"{name} must be finite and not negative, got {value}")
