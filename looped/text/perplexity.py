"""Perplexity of given texts, from the log-probabilities of their tokens."""

from collections.abc import Sequence
from math import exp, fsum, isfinite
from typing import Any

from looped.engine.outputs import Completion

from .completion_json import scores_to_json, token_texts
from .tokenizer import Tokenizer


def perplexities(completions: Sequence[Completion]) -> dict[int, float]:
    """Perplexity of all texts together, by the loop after which they were scored.

    exp(-mean log-probability), every token weighing the same; infinity where float64 ends.
    """
    by_loop: dict[int, list[float]] = {}
    for completion in completions:
        for scores in completion.prompt_scores:
            by_loop.setdefault(scores.loop, []).extend(scores.logprobs)
    return {loop: _perplexity(logprobs) for loop, logprobs in sorted(by_loop.items())}


def score_to_json(completion: Completion, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """One scored text as the object that `looped score --json` prints."""
    by_loop = perplexities([completion])
    return {
        "request_id": completion.request_id,
        "prompt_token_ids": list(completion.prompt_token_ids),
        "prompt_tokens": token_texts(completion.prompt_token_ids, tokenizer),
        "prompt_scores": [
            {**scores_to_json(scores, tokenizer), "perplexity": _or_none(by_loop[scores.loop])}
            for scores in completion.prompt_scores
        ],
        "error": completion.error,
    }


def _perplexity(logprobs: Sequence[float]) -> float:
    try:
        return exp(-fsum(logprobs) / len(logprobs))
    except OverflowError:
        return float("inf")


def _or_none(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if isfinite(value) else None
