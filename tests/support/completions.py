"""Completions made by hand, for what judges them."""

from looped.engine.outputs import Completion
from looped.sched import FinishReason


def completion(
    token_ids=(5, 6), exit_depths=None, text="", *, finish_reason=FinishReason.STOP, error=None
):
    """One with these tokens; every loop of four unless said otherwise."""
    return Completion(
        request_id="0",
        sample_index=0,
        prompt_token_ids=(1,),
        token_ids=tuple(token_ids),
        exit_depths=tuple(exit_depths or [4] * len(token_ids)),
        logprobs=(0.0,) * len(token_ids),
        top_logprobs=None,
        finish_reason=finish_reason,
        stop_reason=None,
        error=error,
        seed=0,
        prompt_scores=(),
        num_cached_tokens=0,
        text=text,
    )
