"""From a user's request to the scheduler's: limits, exit rule, seed, and the options of a draw."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from looped.convert import LookaheadGate
from looped.sched import ExitOptions, PromptScoring, Request, RequestError, resolve_exit

from .errors import UsageError
from .lookahead import check_lookahead
from .sampler import SamplingRows
from .sampling_params import MAX_SEED, SamplingParams


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


def build_requests(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    vocab_size: int,
    num_planes: int,
    eos_token_ids: frozenset[int],
    exit_defaults: ExitOptions,
    lookahead_gate: LookaheadGate | None,
) -> list[Request]:
    """The scheduler's form of a request, one object a sample; `Scheduler.add` checks its limits.

    `params` has a max_tokens.

    Raises:
        UsageError: for stop strings, exit options that contradict each other, a bias or a stop id
            outside the vocabulary, or min_tokens where every token ends the request.
    """
    name = f"request {request_id!r}"
    if params.stop:
        raise UsageError(
            f"{name}: stop strings need a tokenizer: use LLM; got stop {params.stop!r}"
        )
    try:
        exit_rule = resolve_exit(params.exit, exit_defaults, num_planes)
        check_lookahead(exit_rule.mode, lookahead_gate, num_planes)
    except (RequestError, UsageError) as error:
        raise UsageError(f"{name}: {error}") from None
    for option in ("stop_token_ids", "logit_bias"):
        outside = [i for i in getattr(params, option) if not 0 <= i < vocab_size]
        if outside:
            raise UsageError(
                f"{name}: {option} must name token ids in 0..{vocab_size - 1}, got {outside[0]}"
            )
    ends = frozenset() if params.ignore_eos else eos_token_ids
    stop_token_ids = ends | frozenset(params.stop_token_ids)
    drawable_stops = [token_id for token_id in stop_token_ids if 0 <= token_id < vocab_size]
    if params.min_tokens > 0 and len(drawable_stops) == vocab_size:
        raise UsageError(
            f"{name}: min_tokens must be 0 where every token is a stop id, got {params.min_tokens}"
        )
    sampling = RequestSampling(
        temperature=params.temperature,
        top_k=min(params.top_k or vocab_size, vocab_size),
        top_p=params.top_p,
        min_p=params.min_p,
        logit_bias=params.logit_bias,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens if drawable_stops else 0,
        num_logprobs=params.logprobs,
        num_prompt_logprobs=params.prompt_logprobs or 0,
        seed=secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed,
    )
    assert params.max_tokens is not None
    first = Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        max_tokens=params.max_tokens,
        exit_rule=exit_rule,
        stop_token_ids=stop_token_ids,
        priority=params.priority,
        scoring=_scoring(params),
        payload=sampling,
    )
    samples = [first]
    for _ in range(1, params.n):
        samples.append(_next_sample(tuple(samples)))
    return samples


def _next_sample(earlier_samples: tuple[Request, ...]) -> Request:
    """Another sample of the same prompt, which the first one computes and scores."""
    first = earlier_samples[0]
    return Request(
        request_id=first.request_id,
        sample_index=len(earlier_samples),
        earlier_samples=earlier_samples,
        prompt_token_ids=first.prompt_token_ids,
        max_tokens=first.max_tokens,
        exit_rule=first.exit_rule,
        stop_token_ids=first.stop_token_ids,
        priority=first.priority,
        payload=first.payload,
    )


def _scoring(params: SamplingParams) -> PromptScoring:
    if params.prompt_logprobs is None:
        return PromptScoring.NONE
    is_every_loop = params.prompt_logprobs_every_loop
    return PromptScoring.EVERY_LOOP if is_every_loop else PromptScoring.LAST_LOOP
