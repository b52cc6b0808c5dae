"""A completion as the JSON object that `looped generate --json` prints."""

from collections.abc import Sequence
from typing import Any

from looped.engine.outputs import Completion, LoopScores
from looped.sched import TopLogprobs

from .tokenizer import Tokenizer


def completion_to_json(completion: Completion, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The completion in types that `json` writes; `tokenizer` names the alternatives' tokens."""
    tops = completion.top_logprobs
    return {
        "request_id": completion.request_id,
        "sample_index": completion.sample_index,
        "prompt_token_ids": list(completion.prompt_token_ids),
        "prompt_tokens": token_texts(completion.prompt_token_ids, tokenizer),
        "prompt_scores": [scores_to_json(scores, tokenizer) for scores in completion.prompt_scores],
        "token_ids": list(completion.token_ids),
        "tokens": None if completion.tokens is None else list(completion.tokens),
        "text": completion.text,
        "exit_depths": list(completion.exit_depths),
        "logprobs": list(completion.logprobs),
        "top_logprobs": None if tops is None else [alternatives(top, tokenizer) for top in tops],
        "finish_reason": completion.finish_reason.value,
        "stop_reason": completion.stop_reason,
        "error": completion.error,
        "seed": completion.seed,
        "num_cached_tokens": completion.num_cached_tokens,
    }


def token_texts(token_ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str] | None:
    """Text of each token on its own; None without a tokenizer."""
    return None if tokenizer is None else [tokenizer.token_text(token) for token in token_ids]


def scores_to_json(scores: LoopScores, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Scores of a prompt after one loop; the first token, which has none, is null in each list."""
    best = scores.best_token_ids
    return {
        "loop": scores.loop,
        "logprobs": [None, *scores.logprobs],
        "best_token_ids": [None, *best],
        "best_tokens": None if tokenizer is None else [None, *map(tokenizer.token_text, best)],
        "top_logprobs": [None, *(alternatives(top, tokenizer) for top in scores.top_logprobs)],
    }


def alternatives(tops: TopLogprobs, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
    """The most likely tokens of one place as objects; `token` is null without a tokenizer."""
    return [
        {
            "token_id": token_id,
            "token": None if tokenizer is None else tokenizer.token_text(token_id),
            "logprob": logprob,
        }
        for token_id, logprob in tops
    ]
