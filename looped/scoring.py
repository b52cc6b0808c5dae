"""Perplexity of given texts, from the log-probabilities of their tokens."""

from collections.abc import Sequence
from math import exp, fsum, isfinite
from typing import Any

from .completion_json import scores_to_json
from .outputs import Completion, LoopScores
from .tokenizer import Tokenizer


def perplexity(scores: Sequence[LoopScores]) -> float:
    """exp(-mean log-probability) of all tokens that were scored after one loop, of any texts.

    Infinity where float64 ends.
    """
    logprobs = [logprob for text in scores for logprob in text.logprobs]
    try:
        return exp(-fsum(logprobs) / len(logprobs))
    except OverflowError:
        return float("inf")


def perplexities(completions: Sequence[Completion]) -> dict[int, float]:
    """Perplexity of all texts together, by the loop after which they were scored."""
    by_loop: dict[int, list[LoopScores]] = {}
    for completion in completions:
        for scores in completion.prompt_scores:
            by_loop.setdefault(scores.loop, []).append(scores)
    return {loop: perplexity(scores) for loop, scores in sorted(by_loop.items())}


def score_to_json(completion: Completion, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """One scored text as the object that `looped score --json` prints."""
    token_ids = completion.prompt_token_ids
    return {
        "index": int(completion.request_id),
        "token_ids": list(token_ids),
        "tokens": None if tokenizer is None else list(map(tokenizer.token_text, token_ids)),
        "loops": [
            {**scores_to_json(scores, tokenizer), "perplexity": _or_none(perplexity([scores]))}
            for scores in completion.prompt_scores
        ],
        "error": completion.error,
    }


def _or_none(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if isfinite(value) else None
