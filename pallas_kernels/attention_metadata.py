"""Which rows of a launch attend to which keys: `AttentionMetadata`, one pytree of integers."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class AttentionMetadata:
    """The decode rows and prompt items of one launch, for one plane each; all int32.

    Row r < R is a decode row iff decode_lengths[r] > 0. Prompt item i owns rows prompt_first_row[i]
    to prompt_first_row[i] + prompt_rows[i] - 1. No row belongs to both; a row of neither returns
    zeros. In every launch R = min(T, max_num_seqs) and I = min(T, W max_num_seqs), where a request
    may have W prompt items in one launch. It is the same for every layer, so a layer's first block
    is no part of it.
    """

    decode_tables: Int[Array, "R B"]
    """Ids in 0..N-1 of the blocks of the plane that decode row r reads, in order of position.
    Entries past the row's length may hold anything."""
    decode_lengths: Int[Array, " R"]
    """Keys that decode row r sees, its own included (position + 1); 0: no row."""
    prompt_tables: Int[Array, "I B"]
    """As `decode_tables`, per prompt item."""
    prompt_position: Int[Array, " I"]
    """Position of item i's first row; its row j sees keys 0..prompt_position[i] + j."""
    prompt_first_row: Int[Array, " I"]
    """The batch row where item i begins."""
    prompt_rows: Int[Array, " I"]
    """Number of rows of item i; 0: unused, its other entries may hold anything."""

    @classmethod
    def abstract(cls, *, num_decode: int, num_items: int, table_width: int) -> "AttentionMetadata":
        """Shapes and types alone: R, I and B of a launch that is traced and not run."""

        def integers(*sizes: int) -> Any:
            return jax.ShapeDtypeStruct(sizes, jnp.int32)

        return cls(
            decode_tables=integers(num_decode, table_width),
            decode_lengths=integers(num_decode),
            prompt_tables=integers(num_items, table_width),
            prompt_position=integers(num_items),
            prompt_first_row=integers(num_items),
            prompt_rows=integers(num_items),
        )

    def is_prompt_row(self, num_rows: int) -> Bool[Array, " T"]:
        """Rows that belong to a prompt item."""
        row = jnp.arange(num_rows)[:, None]
        end = self.prompt_first_row + self.prompt_rows
        return jnp.any((row >= self.prompt_first_row) & (row < end), axis=1)

    def check(self, num_rows: int) -> None:
        """Refuse shapes that do not fit together, or a batch of `num_rows` rows.

        Raises:
            ValueError: which field, what was expected, and what it is.
        """
        for kind, vectors in (
            ("decode", ("decode_lengths",)),
            ("prompt", ("prompt_position", "prompt_first_row", "prompt_rows")),
        ):
            name = f"{kind}_tables"
            tables = getattr(self, name)
            if tables.ndim != 2 or tables.shape[0] > num_rows:
                raise ValueError(
                    f"expected {name} of two axes with at most T = {num_rows} rows, "
                    f"got {tables.shape}"
                )
            for vector in vectors:
                shape = getattr(self, vector).shape
                if shape != tables.shape[:1]:
                    raise ValueError(
                        f"expected {vector} with one entry per row of {name}, "
                        f"{tables.shape[:1]}, got {shape}"
                    )
