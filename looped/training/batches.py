"""Batches of one fixed shape, several examples packed into each row, a pure function of the step.

What no longer fits into a batch opens the next one, so that long examples are as likely as short
ones. Every `BLOCK` steps draw from a random source of their own: a run that is resumed draws what
it would have drawn, at the cost of the batches before it in its block. Only the example that is
left over at the end of a block is dropped, one in `BLOCK` batches; it tends to be a long one.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from looped.errors import UsageError

BLOCK = 64
"""Batches that come out of one random source."""
NO_EXAMPLE = 0
"""Segment of positions that no example fills."""


class Example(NamedTuple):
    """Token ids of one text; the loss is about the completion."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]


DrawExample = Callable[[random.Random], Example]


def check_example(example: Example, sequence_length: int) -> None:
    """UsageError for an example that is longer than a row, or has nothing to predict."""
    if _size(example) < 1:
        raise UsageError(
            "an example has fewer than two tokens, so there is none to predict; remove it"
        )
    if _size(example) > sequence_length:
        raise UsageError(
            f"an example has {_size(example) + 1} tokens, and a row holds {sequence_length + 1}; "
            f"raise --sequence-length to {_size(example)}, or shorten it"
        )


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


def token_shares(batch: Batch, counts: Bool[Array, " T"] | None = None) -> Float[Array, " T"]:
    """Each token's share of a batch's loss, or of the loss of those that count; they sum to 1."""
    weights = jnp.reshape(batch.weights, -1)
    if counts is not None:
        weights = jnp.where(counts, weights, 0.0)
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
        self._next, self._block = -1, self._from(0)

    def at(self, step: int) -> Batch:
        """Examples go to the first row with room, until one fits nowhere: it opens the next batch.

        Raises:
            UsageError: an example is longer than a row, or has nothing to predict.
        """
        first = step - step % BLOCK
        if step != self._next or step == first:
            self._block = self._from(first)
            for _ in range(first, step):
                next(self._block)
        batch = next(self._block)
        self._next = step + 1
        return batch

    def _from(self, first: int) -> Iterator[Batch]:
        """The batches of the block that begins with a step."""
        rng = random.Random(f"batches from {first} of seed {self._seed}")
        example = self._drawn(rng)
        while True:
            batch = Batch.empty(*self._shape)
            ends, counts = [0] * self._shape[0], [0] * self._shape[0]
            while (row := self._row_for(example, ends)) is not None:
                counts[row] += 1
                ends[row] = batch.place(row, ends[row], counts[row], example, self._prompt_weight)
                example = self._drawn(rng)
            yield batch

    def _drawn(self, rng: random.Random) -> Example:
        example = self._draw(rng)
        check_example(example, self._shape[1])
        return example

    def _row_for(self, example: Example, ends: Sequence[int]) -> int | None:
        fitting = (row for row, end in enumerate(ends) if end + _size(example) <= self._shape[1])
        return next(fitting, None)


def _size(example: Example) -> int:
    """Positions that an example takes: each but its last token has a target."""
    return len(example.prompt_ids) + len(example.completion_ids) - 1
