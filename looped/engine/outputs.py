"""What the engine tells its users: tokens as they come, and finished requests."""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from looped.programs.sampling.request_sampling import sampling_of
from looped.sched import FinishReason, PromptScores, Request, TokenOutput, TopLogprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvent:
    """One new token of one request."""

    request_id: str
    sample_index: int
    output_index: int
    token_id: int
    logprob: float
    """Log-probability under the raw logits, float32."""
    top_logprobs: TopLogprobs | None
    """(token id, raw log-probability) of the most likely tokens in its place, as many as `logprobs`
    asks for; None where it asks for none."""
    exit_depth: int
    """Loops executed for it, 1-based; the first token's is P."""
    text: str = ""
    """The text that it makes certain, which may be none; a stop string, or what may become one, is
    not in it. Always empty without a tokenizer."""
    prompt_scores: "tuple[LoopScores, ...]" = ()
    """With the first token of sample 0 of a scored request: what `Completion.prompt_scores` will
    say, so that a stream can begin with it."""

    @classmethod
    def from_output(cls, output: TokenOutput) -> "TokenEvent":
        return cls(
            request_id=output.request.request_id,
            sample_index=output.request.sample_index,
            output_index=output.output_index,
            token_id=output.token_id,
            logprob=output.logprob,
            top_logprobs=output.top_logprobs,
            exit_depth=output.exit_depth,
            prompt_scores=tuple(map(LoopScores.from_scores, output.request.prompt_scores))
            if output.output_index == 0
            else (),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopScores:
    """What the model says after one loop about the tokens of a prompt, from the second on."""

    loop: int
    """Loops that were run, 1-based; P is what the model answers with."""
    logprobs: tuple[float, ...]
    """Raw log-probability of each token, float32."""
    best_token_ids: tuple[int, ...]
    """The most likely token at each position."""
    top_logprobs: tuple[TopLogprobs, ...]
    """(token id, raw log-probability) of the most likely tokens in the place of each, as many as
    `prompt_logprobs` asks for."""

    @classmethod
    def from_scores(cls, scores: PromptScores) -> "LoopScores":
        return cls(
            loop=scores.loop,
            logprobs=tuple(scores.logprobs),
            best_token_ids=tuple(scores.best_token_ids),
            top_logprobs=tuple(scores.top_logprobs),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """A finished request, or one of its samples."""

    request_id: str
    sample_index: int
    """Which of the request's n samples it is, from 0."""
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Emitted tokens; the one that stopped the request, or completed the stop string that did, is
    the last of them."""
    exit_depths: tuple[int, ...]
    """Loops executed for each token, 1-based."""
    logprobs: tuple[float, ...]
    """Raw log-probability of each token."""
    top_logprobs: tuple[TopLogprobs, ...] | None
    """(token id, raw log-probability) of the most likely tokens in the place of each, as many as
    `logprobs` asks for; None where it asks for none."""
    finish_reason: FinishReason
    stop_reason: int | str | None
    """With finish_reason `stop`, the token id or the stop string that ended it; a string goes
    before an id in the same place."""
    error: str | None
    """What went wrong, with finish_reason `error`."""
    seed: int
    """Seed of its draws, also where none was asked for."""
    prompt_scores: tuple[LoopScores, ...]
    """Log-probabilities of the prompt's tokens, by loop; empty where none were asked for."""
    num_cached_tokens: int
    """Prompt tokens that the prefix cache held."""
    text: str | None = None
    """Decoded tokens without special ones, up to the stop string; None without a tokenizer."""
    tokens: tuple[str, ...] | None = None
    """Text of each emitted token on its own, special ones by name; None without a tokenizer."""

    @classmethod
    def from_request(cls, request: Request) -> "Completion":
        assert request.finish_reason is not None
        sampling = sampling_of(request)
        tops = [top for top in request.top_logprobs if top is not None]
        is_stopped = request.finish_reason is FinishReason.STOP
        return cls(
            request_id=request.request_id,
            sample_index=request.sample_index,
            prompt_token_ids=request.prompt_token_ids,
            token_ids=tuple(request.output_token_ids),
            exit_depths=tuple(request.exit_depths),
            logprobs=tuple(request.logprobs),
            top_logprobs=None if sampling.num_logprobs is None else tuple(tops),
            finish_reason=request.finish_reason,
            stop_reason=request.output_token_ids[-1] if is_stopped else None,
            error=request.error,
            seed=sampling.seed,
            prompt_scores=tuple(map(LoopScores.from_scores, request.prompt_scores)),
            num_cached_tokens=request.num_cached_tokens,
        )


OfSample = TypeVar("OfSample", TokenEvent, Completion)


def copies(output: OfSample, num_samples: int) -> list[OfSample]:
    """What so many equal samples bring, of the output of the first; its scores stay its own."""
    first = output.sample_index
    samples: list[OfSample] = [output]
    for index in range(first + 1, first + num_samples):
        samples.append(replace(output, sample_index=index, prompt_scores=()))
    return samples


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one engine step brought."""

    tokens: list[TokenEvent] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)

    def extend(self, other: "StepOutput") -> None:
        """Adds what came after it."""
        self.tokens.extend(other.tokens)
        self.completions.extend(other.completions)
