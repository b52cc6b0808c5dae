"""Batches of one fixed shape, several examples packed into each row, a pure function of the step.

Nothing is remembered from batch to batch: a run that is resumed at a step draws what it would have
drawn there anyway.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from looped.errors import UsageError

NO_EXAMPLE = 0
"""Segment of positions that no example fills."""


class Example(NamedTuple):
    """Token ids of one text; the loss is about the completion."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]


DrawExample = Callable[[random.Random], Example]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Inputs and targets of B rows, each of N positions."""

    token_ids: Int[Array, "B N"] | Int[np.ndarray, "B N"]
    targets: Int[Array, "B N"] | Int[np.ndarray, "B N"]
    """The token after each position, in its own example."""
    weights: Float[Array, "B N"] | Float[np.ndarray, "B N"]
    """1 where the target belongs to a completion, `prompt_weight` in a prompt, else 0."""
    positions: Int[Array, "B N"] | Int[np.ndarray, "B N"]
    """Place in the example."""
    segments: Int[Array, "B N"] | Int[np.ndarray, "B N"]
    """Which example of its row a position belongs to, from 1 on; `NO_EXAMPLE` for none."""
    is_generated: Bool[Array, "B N"] | Bool[np.ndarray, "B N"]
    """Whether the input token is one of a completion, which an engine would decode."""

    @classmethod
    def empty(cls, batch_size: int, sequence_length: int) -> "Batch":
        shape = (batch_size, sequence_length)
        ids = [np.zeros(shape, np.int32) for _ in range(4)]
        weights, is_generated = np.zeros(shape, np.float32), np.zeros(shape, bool)
        return cls(ids[0], ids[1], weights, ids[2], ids[3], is_generated)

    def place(
        self, row: int, start: int, segment: int, example: Example, prompt_weight: float
    ) -> int:
        """Writes an example into a row; returns where the next one may start."""
        ids = [*example.prompt_ids, *example.completion_ids]
        end = start + len(ids) - 1
        self.token_ids[row, start:end] = ids[:-1]
        self.targets[row, start:end] = ids[1:]
        first = max(start + len(example.prompt_ids) - 1, start)
        self.weights[row, start:first] = prompt_weight
        self.weights[row, first:end] = 1.0
        self.positions[row, start:end] = np.arange(end - start)
        self.segments[row, start:end] = segment
        self.is_generated[row, start + len(example.prompt_ids) : end] = True
        return end


def token_shares(batch: Batch) -> Float[Array, " T"]:
    """Each token's share of a batch's loss; they sum to 1."""
    weights = jnp.reshape(batch.weights, -1)
    return weights / jnp.sum(weights)


class Batches:
    """Batch number `step` of a seed.

    Args:
        draw: an example out of a random source.
        batch_size, sequence_length: B and N.
        seed: other seeds draw other examples.
        prompt_weight: loss weight of targets inside prompts.
    """

    def __init__(
        self,
        draw: DrawExample,
        *,
        batch_size: int,
        sequence_length: int,
        seed: int,
        prompt_weight: float = 0.0,
    ) -> None:
        self._draw = draw
        self._shape = batch_size, sequence_length
        self._seed, self._prompt_weight = seed, prompt_weight

    def at(self, step: int) -> Batch:
        """Examples go to the first row with room; the first that fits nowhere ends the batch."""
        rng = random.Random(f"batch {step} of seed {self._seed}")
        batch_size, sequence_length = self._shape
        batch = Batch.empty(*self._shape)
        ends, counts = [0] * batch_size, [0] * batch_size
        while True:
            example = self._draw(rng)
            needed = len(example.prompt_ids) + len(example.completion_ids) - 1
            if needed > sequence_length:
                raise UsageError(
                    f"an example has {needed + 1} tokens, and a row holds {sequence_length + 1}; "
                    "raise --sequence-length"
                )
            row = next(
                (row for row, end in enumerate(ends) if end + needed <= sequence_length), None
            )
            if row is None:
                return batch
            counts[row] += 1
            ends[row] = batch.place(row, ends[row], counts[row], example, self._prompt_weight)
