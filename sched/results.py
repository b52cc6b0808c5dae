"""What a launch returns to the scheduler, and what the scheduler makes of it for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Request

TopLogprobs = tuple[tuple[int, float], ...]
"""Most likely tokens with their raw float32 log-probabilities, the most likely one first."""


@dataclass(frozen=True, slots=True)
class RecurrentResult:
    """Result of a recurrent or prefill launch. Prompt items return nothing."""

    decode_signals: Sequence[float] | None
    """One float32 value per DECODE item, in item order; None if the launch was not read."""


@dataclass(frozen=True, slots=True)
class CodaResult:
    """Result of a coda launch: one entry per item, in item order."""

    token_ids: Sequence[int]
    """Sampled tokens."""
    logprobs: Sequence[float]
    """Raw float32 log-probability of each."""
    is_finite: Sequence[bool]
    """Whether the logits were finite; if not, the other entries mean nothing."""
    top_logprobs: Sequence[TopLogprobs | None] | None = None
    """The most likely tokens of each, None for an item that asks for none; None for no item."""


LaunchResult = RecurrentResult | CodaResult


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """One token that a launch brought."""

    request: Request
    """Whose token it is."""
    output_index: int
    """Its index among the request's outputs."""
    token_id: int
    """The token."""
    logprob: float
    """Its raw log-probability."""
    exit_depth: int
    """Loops executed for it, 1-based."""
    top_logprobs: TopLogprobs | None = None
    """The most likely tokens in its place, if the request asks for them."""


@dataclass(slots=True)
class StepUpdate:
    """What one applied launch changed for the outside."""

    tokens: list[TokenOutput] = field(default_factory=list)
    """New tokens, in item order."""
    finished: list[Request] = field(default_factory=list)
    """Requests that ended; `finish_reason` and `error` say how."""
