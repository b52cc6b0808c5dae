"""What the engine keeps with a request of the scheduler: how its tokens are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from looped.sched import Request


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
    vocab_size: int
    """What top_k is where it keeps all."""

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

    @property
    def row(self) -> dict[str, Any]:
        """Its columns of `RowOptions`."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "is_edited": self.is_edited,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "min_tokens": self.min_tokens,
            "seed": (self.seed >> 32, self.seed & 0xFFFFFFFF),
            "wants_top": bool(self.num_logprobs),
        }


def sampling_of(request: Request) -> RequestSampling:
    """The engine's part of a scheduler's request."""
    assert isinstance(request.payload, RequestSampling)
    return request.payload
