"""What a user asks of one request: how tokens are drawn, when to stop, when to leave the loops."""

from dataclasses import dataclass, field

from looped.sched import ExitOptions

from .errors import UsageError

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options of one request; checked when built, before any work.

    Raises:
        UsageError: naming the option, what is allowed and what came.
    """

    max_tokens: int = 64
    """Tokens to emit at most."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int | None = None
    """Keep the k most likely tokens, and all that tie with the last of them; None keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens that holds this probability; ties stay in."""
    seed: int | None = None
    """Seed of this request's draws; None draws a fresh one, which the output names."""
    stop_token_ids: frozenset[int] = frozenset()
    """Further ids that end the request, beside the model's end of sequence."""
    ignore_eos: bool = False
    """Do not stop at the model's end of sequence."""
    exit: ExitOptions = field(default_factory=ExitOptions)
    """When tokens leave the loops; what is None is the engine's default."""
    priority: int = 0
    """Lower goes first, under scheduling policy `priority`."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0.0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be at least 1, or left out; got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise UsageError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"seed must be 0 to {MAX_SEED}, got {self.seed}")
