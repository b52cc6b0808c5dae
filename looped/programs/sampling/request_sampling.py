"""What the engine keeps with a request of the scheduler: how its tokens are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass

from looped.sched import Request

from .sampler import SamplingRows


@dataclass(frozen=True, slots=True)
class RequestSampling:
    """What the engine keeps with a request (`Request.payload`): how its tokens are drawn."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    min_tokens: int
    """0 where no stop id could be drawn."""
    num_logprobs: int | None
    """Most likely tokens to return with every token; None returns no list."""
    num_prompt_logprobs: int
    """Most likely tokens to return with every prompt token that is scored."""
    seed: int

    @property
    def is_edited(self) -> bool:
        """Whether logits are edited before the draw, for which the slot needs marks and bias."""
        return (
            bool(self.logit_bias)
            or self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.min_tokens > 0
        )

    def write(self, rows: SamplingRows, index: int) -> None:
        """Fills one row of a coda launch's host views."""
        rows.temperature[index] = self.temperature
        rows.top_k[index] = self.top_k
        rows.top_p[index] = self.top_p
        rows.min_p[index] = self.min_p
        rows.is_edited[index] = self.is_edited
        rows.repetition_penalty[index] = self.repetition_penalty
        rows.presence_penalty[index] = self.presence_penalty
        rows.frequency_penalty[index] = self.frequency_penalty
        rows.min_tokens[index] = self.min_tokens
        rows.seed[index] = (self.seed >> 32, self.seed & 0xFFFFFFFF)


def sampling_of(request: Request) -> RequestSampling:
    """The engine's part of a scheduler's request."""
    assert isinstance(request.payload, RequestSampling)
    return request.payload
