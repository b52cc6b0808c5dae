"""Requests for a server and when they come: one list, made ahead, that no answer can delay.

That is an open loop: a server that falls behind gets its next requests all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from looped.errors import UsageError

LEAST_BURSTINESS, MOST_BURSTINESS = 0.001, 1000.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks for."""

    token_ids: tuple[int, ...]
    output_tokens: int
    """Emitted exactly: the end of sequence is ignored."""


@dataclass(frozen=True)
class Sample:
    """Prompts of one run."""

    prompts: list[Prompt]
    dropped: dict[str, int] = field(default_factory=dict)
    """Of a file's entries that were looked at, those not used, by the reason."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, and its moment."""

    index: int
    time: float
    """Seconds after the start of the run."""
    prompt: Prompt


def check_rate(rate: float) -> None:
    """UsageError for a rate of a user that is none."""
    if not 0 < rate < float("inf"):
        raise UsageError(f"--rate must be above 0 requests per second, and finite; got {rate}")


def poisson_arrivals(prompts: Sequence[Prompt], rate: float, *, seed: int) -> list[Arrival]:
    """The prompts in their order, as a Poisson process brings them.

    Request i comes at t_i = (e_0 + ... + e_i) / rate, with e_i drawn from an exponential
    distribution of mean 1. The draws depend on the seed alone, so that two rates see the same
    bursts, faster or slower.

    Args:
        prompts: what is asked for, one each.
        rate: requests per second, above 0.
        seed: of the draws.

    Raises:
        UsageError: no prompts, or no rate.
    """
    if not prompts:
        raise UsageError("expected prompts, got none")
    times = arrival_times(len(prompts), rate, seed=seed)
    return [
        Arrival(index, time, prompt)
        for index, (time, prompt) in enumerate(zip(times, prompts, strict=True))
    ]


def arrival_times(
    count: int, rate: float, *, seed: int, burstiness: float | None = None
) -> list[float]:
    """Moments of a random process, in seconds from 0: t_i = (e_0 + ... + e_i) / rate.

    Args:
        count: how many.
        rate: arrivals per second, above 0.
        seed: of the draws, which depend on nothing else: two rates see the same bursts.
        burstiness: coefficient of variation of the e_i, above 0, drawn from a gamma distribution of
            mean 1. None: a Poisson process, whose e_i are exponential, as they are for 1.

    Raises:
        UsageError: a rate that is not above 0, or a burstiness out of range.
    """
    if not rate > 0:
        raise UsageError(f"expected a rate above 0, got {rate}")
    if burstiness is not None and not LEAST_BURSTINESS <= burstiness <= MOST_BURSTINESS:
        raise UsageError(
            f"burstiness must be above 0, from {LEAST_BURSTINESS} to {MOST_BURSTINESS}, got "
            f"{burstiness}; 1 is a Poisson process"
        )
    random = Random(f"{seed}/arrivals")
    if burstiness is None:
        gaps = (random.expovariate(1.0) for _ in range(count))
    else:
        shape = burstiness**-2
        gaps = (random.gammavariate(shape, 1 / shape) for _ in range(count))
    return [time / rate for time in accumulate(gaps)]


def random_prompts(
    count: int, *, prompt_tokens: int, output_tokens: int, vocab_size: int, seed: int, name: str
) -> list[Prompt]:
    """Prompts of random ids, all different, also from those of another name.

    Args:
        count: how many.
        prompt_tokens: length of each.
        output_tokens: that each asks for.
        vocab_size: ids are below it.
        seed: of the ids.
        name: of the run, so that a server's prefix cache finds nothing of an earlier one.

    Raises:
        UsageError: a number below 1.
    """
    sizes = {
        "num_requests": count,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "vocab_size": vocab_size,
    }
    for size, value in sizes.items():
        if value < 1:
            raise UsageError(f"{size} must be at least 1, got {value}")
    return [
        Prompt(random_token_ids(seed, f"{name}/{index}", prompt_tokens, vocab_size), output_tokens)
        for index in range(count)
    ]


def random_token_ids(
    seed: int, request_id: str, num_tokens: int, vocab_size: int
) -> tuple[int, ...]:
    """A prompt of its own for every request: no two share a block."""
    return tuple(Random(f"{seed}/{request_id}").choices(range(vocab_size), k=num_tokens))
