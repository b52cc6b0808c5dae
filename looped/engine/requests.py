"""From a user's request to the scheduler's: limits, exit rule, seed, and the options of a draw."""

import secrets
from collections.abc import Sequence

from looped.convert import LookaheadGate
from looped.errors import UsageError
from looped.programs.lookahead import check_lookahead
from looped.programs.sampling.request_sampling import RequestSampling
from looped.sampling_params import MAX_SEED, SamplingParams
from looped.sched import ExitOptions, PromptScoring, Request, RequestError, resolve_exit


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
        vocab_size=vocab_size,
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
