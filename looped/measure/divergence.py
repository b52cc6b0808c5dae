"""Where two runs of one request part: the first token, how close it was, and the first exit."""

from dataclasses import dataclass

import numpy as np

from looped.engine.outputs import Completion
from looped.models.looped_model import LoopedModel
from looped.reference import generate


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How one completion differs from another of the same prompt; None where it does not."""

    token_index: int | None
    """First output token that differs."""
    margin: float | None
    """Gap between the two largest logits at that token, on the expected run's own history."""
    exit_index: int | None
    """First output token, up to the one that differs, that ran another number of loops."""

    @property
    def is_none(self) -> bool:
        """Whether both completions are equal in tokens and exits."""
        return self.token_index is None and self.exit_index is None


def first_divergence(model: LoopedModel, expected: Completion, got: Completion) -> Divergence:
    """Compares two completions of one prompt, token by token.

    Args:
        model: measures the margin; in float32 it tells a near tie from an error.
        expected: the run whose history counts.
        got: the other run.
    """
    token_index = _first_difference(expected.token_ids, got.token_ids)
    shared = min(len(expected.exit_depths), len(got.exit_depths))
    # The exit of a token is decided before it is known: it belongs to the shared history.
    end = shared if token_index is None else min(shared, token_index + 1)
    exit_index = _first_difference(expected.exit_depths[:end], got.exit_depths[:end])
    margin = None
    if token_index is not None and token_index < len(expected.token_ids):
        margin = _margin(model, expected, token_index)
    return Divergence(token_index=token_index, margin=margin, exit_index=exit_index)


def _margin(model: LoopedModel, expected: Completion, token_index: int) -> float:
    """Top-1 margin of one output token, with the tokens and exits before it replayed."""
    *_, token = generate(
        model,
        expected.prompt_token_ids,
        max_tokens=token_index + 1,
        mode="trace",
        trace=expected.exit_depths,
        forced_token_ids=expected.token_ids,
    )
    second, first = np.partition(token.logits, -2)[-2:]
    return float(first - second)


def _first_difference(expected: tuple[int, ...], got: tuple[int, ...]) -> int | None:
    for index, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))
