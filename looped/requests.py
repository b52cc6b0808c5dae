"""From a user's request to the scheduler's: limits, exit rule, seed, and the options of a draw."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from looped.sched import ExitOptions, Request, RequestError, resolve_exit

from .errors import UsageError
from .sampler import SamplingRows
from .sampling_params import MAX_SEED, SamplingParams


@dataclass(frozen=True, slots=True)
class RequestSampling:
    """What the engine keeps with a request (`Request.payload`): how its tokens are drawn."""

    temperature: float
    top_k: int
    top_p: float
    seed: int

    def write(self, rows: SamplingRows, index: int) -> None:
        """Fills one row of a coda launch's host views."""
        rows.temperature[index] = self.temperature
        rows.top_k[index] = self.top_k
        rows.top_p[index] = self.top_p
        rows.seed[index] = (self.seed >> 32, self.seed & 0xFFFFFFFF)


def sampling_of(request: Request) -> RequestSampling:
    """The engine's part of a scheduler's request."""
    assert isinstance(request.payload, RequestSampling)
    return request.payload


def build_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    vocab_size: int,
    num_planes: int,
    eos_token_ids: frozenset[int],
    exit_defaults: ExitOptions,
) -> Request:
    """The scheduler's form of a request; its limits are checked by `Scheduler.add`.

    Raises:
        UsageError: for exit options that contradict each other.
    """
    try:
        exit_rule = resolve_exit(params.exit, exit_defaults, num_planes)
    except RequestError as error:
        raise UsageError(str(error)) from None
    sampling = RequestSampling(
        temperature=params.temperature,
        top_k=min(params.top_k or vocab_size, vocab_size),
        top_p=params.top_p,
        seed=secrets.randbelow(MAX_SEED + 1) if params.seed is None else params.seed,
    )
    ends = frozenset() if params.ignore_eos else eos_token_ids
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt_token_ids),
        max_tokens=params.max_tokens,
        exit_rule=exit_rule,
        stop_token_ids=ends | frozenset(params.stop_token_ids),
        priority=params.priority,
        payload=sampling,
    )
