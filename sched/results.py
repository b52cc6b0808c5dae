"""What a launch returns to the scheduler, and what the scheduler makes of it for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request import Request

TopLogprobs = tuple[tuple[int, float], ...]
"""Most likely tokens with their raw float32 log-probabilities, the most likely one first."""


class RowStatus(IntEnum):
    """What became of a row that could have finished in a launch."""

    MASKED = 0
    """Nothing: it had ended on the device in an earlier launch."""
    STAYED = 1
    """It goes on with the next loop."""
    LEAVES_NEXT = 2
    """It goes on, and leaves after the next loop."""
    LEFT = 3
    """It has left, and its token is drawn."""


@dataclass(frozen=True, slots=True)
class HeadResult:
    """What the head behind a launch brings: one entry per `Batch.head_items`, in their order."""

    statuses: Sequence[RowStatus]
    """What became of each row; but for LEFT, the entries below mean nothing."""
    loops: Sequence[int]
    """Loops that the row had run after the launch, 1-based."""
    token_ids: Sequence[int]
    """Sampled tokens."""
    logprobs: Sequence[float]
    """Raw float32 log-probability of each."""
    is_finite: Sequence[bool]
    """Whether the logits were finite; if not, token and log-probability mean nothing."""
    top_logprobs: Sequence[TopLogprobs | None] | None = None
    """The most likely tokens of each, None for an item that asks for none; None for no item."""
    gates: Sequence[tuple[float, ...]] | None = None
    """sigmoid of the gate after each loop of the token, one entry a loop; None unless recorded."""


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Result of a score launch: one entry per row, each about the prompt token after it."""

    logprobs: Sequence[float]
    """Raw float32 log-probability of each token."""
    best_token_ids: Sequence[int]
    """The most likely token in the place of each."""
    is_finite: bool
    """Whether all logits were finite; if not, the other entries mean nothing."""
    top_logprobs: Sequence[TopLogprobs] | None = None
    """The most likely tokens in the place of each; None if the request asks for none."""


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What a launch brings: nothing, unless it scores or a head follows."""

    head: HeadResult | None = None
    """Of the rows that could have finished in it."""
    score: ScoreResult | None = None
    """Of the prompt rows that it has scored."""


@dataclass(slots=True)
class PromptScores:
    """What the model says after one loop about the tokens of a prompt, from the second on."""

    loop: int
    """Loops that the rows had run, 1-based; P is what the model is trained to answer with."""
    logprobs: list[float] = field(default_factory=list)
    """Raw log-probability of each token."""
    best_token_ids: list[int] = field(default_factory=list)
    """The most likely token in the place of each."""
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    """The most likely tokens in the place of each; empty if the request asks for none."""

    def extend(self, result: ScoreResult) -> None:
        """Add the next rows."""
        self.logprobs.extend(result.logprobs)
        self.best_token_ids.extend(result.best_token_ids)
        self.top_logprobs.extend(result.top_logprobs or ())


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
    gates: tuple[float, ...] | None = None
    """sigmoid of the gate after each of its loops; None unless recorded, and of a first token."""


@dataclass(slots=True)
class StepUpdate:
    """What one applied launch changed for the outside."""

    tokens: list[TokenOutput] = field(default_factory=list)
    """New tokens, in item order."""
    finished: list[Request] = field(default_factory=list)
    """Requests that ended; `finish_reason` and `error` say how."""
