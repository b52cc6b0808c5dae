"""What the device knows of the request in each slot: two int32 arrays, a row a slot.

`RowOptions` is what the request asks for, written when it is admitted. `RowProgress` is how far its
row has come; from admission on the device alone writes it. Floats and seeds travel as their bits.
"""

from typing import Any, ClassVar, Literal, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from .pytree import register_pytree

NUM_STOP_IDS = 8
"""Stop ids of a request that the device knows; of more, the rest end it on the host alone."""
NO_TOKEN = -1
"""Fills the places of stop ids that a request does not have."""

Columns = dict[str, tuple[Literal["int32", "float32", "uint32"], int]]
"""Type and number of columns of each field, in order."""
R = TypeVar("R", "RowProgress", "RowOptions")


@register_pytree
class RowProgress:
    """How far the rows have come; R rows."""

    position: Any
    """[R] of the token that the row feeds, or of the last prompt token before there is one."""
    depth: Any
    """[R] loops that the row has run for it."""
    last_token: Any
    """[R] the token; embedded at depth 0."""
    num_outputs: Any
    """[R] tokens drawn so far: the index of the one that the row leads to."""
    survival: Any
    """[R] float32 product of 1 - sigmoid(gate) over its loops."""
    is_pending: Any
    """[R] whether it leaves after the next loop."""
    is_leaving: Any
    """[R] whether it has left the loop, and waits for the head behind the launch."""
    is_done: Any
    """[R] whether the request has ended: nothing of it is written any more."""

    COLUMNS: ClassVar[Columns] = {
        "position": ("int32", 1),
        "depth": ("int32", 1),
        "last_token": ("int32", 1),
        "num_outputs": ("int32", 1),
        "survival": ("float32", 1),
        "is_pending": ("int32", 1),
        "is_leaving": ("int32", 1),
        "is_done": ("int32", 1),
    }


@register_pytree
class RowOptions:
    """What the requests ask for; R rows."""

    exit_mode: Any
    """[R] index into `exit_decisions.EXIT_MODES`."""
    threshold: Any
    """[R] float32; 1 never leaves early."""
    min_loops: Any
    max_loops: Any
    trace_length: Any
    """[R] recorded depths; tokens past them run max_loops."""
    max_tokens: Any
    stop_ids: Any
    """[R 8] ids that end the request, NO_TOKEN in places that are free."""
    temperature: Any
    top_k: Any
    top_p: Any
    min_p: Any
    is_edited: Any
    repetition_penalty: Any
    presence_penalty: Any
    frequency_penalty: Any
    min_tokens: Any
    seed: Any
    """[R 2] uint32, high and low word."""
    sample_index: Any
    wants_top: Any
    """[R] whether the most likely tokens are returned with each."""

    COLUMNS: ClassVar[Columns] = {
        "exit_mode": ("int32", 1),
        "threshold": ("float32", 1),
        "min_loops": ("int32", 1),
        "max_loops": ("int32", 1),
        "trace_length": ("int32", 1),
        "max_tokens": ("int32", 1),
        "stop_ids": ("int32", NUM_STOP_IDS),
        "temperature": ("float32", 1),
        "top_k": ("int32", 1),
        "top_p": ("float32", 1),
        "min_p": ("float32", 1),
        "is_edited": ("int32", 1),
        "repetition_penalty": ("float32", 1),
        "presence_penalty": ("float32", 1),
        "frequency_penalty": ("float32", 1),
        "min_tokens": ("int32", 1),
        "seed": ("uint32", 2),
        "sample_index": ("int32", 1),
        "wants_top": ("int32", 1),
    }


def num_columns(cls: type[R]) -> int:
    """Columns of the table that holds such rows."""
    return sum(width for _, width in cls.COLUMNS.values())


def column(cls: type[R], name: str) -> int:
    """Index of a field's first column."""
    names = list(cls.COLUMNS)
    return sum(width for _, width in list(cls.COLUMNS.values())[: names.index(name)])


def read_rows(cls: type[R], table: Int[Array, "slots C"], slots: Int[Array, " R"]) -> R:
    """The rows of some slots, inside a compiled step; of a slot past the end any row."""
    rows = table.at[slots].get(mode="clip")
    values: dict[str, Array] = {}
    start = 0
    for name, (dtype, width) in cls.COLUMNS.items():
        columns = rows[:, start] if width == 1 else rows[:, start : start + width]
        is_plain = dtype == "int32"
        values[name] = columns if is_plain else lax.bitcast_convert_type(columns, np.dtype(dtype))
        start += width
    return cls(**values)


def write_rows(
    table: Int[Array, "slots C"], slots: Int[Array, " R"], rows: RowProgress | RowOptions
) -> Int[Array, "slots C"]:
    """The table with these rows in their slots, inside a compiled step; none past the end."""
    parts = []
    for name, (dtype, width) in rows.COLUMNS.items():
        values = jnp.asarray(getattr(rows, name))
        if dtype != "int32":
            values = lax.bitcast_convert_type(values.astype(dtype), jnp.int32)
        parts.append(values.astype(jnp.int32).reshape(-1, width))
    return table.at[slots].set(jnp.concatenate(parts, axis=1), mode="drop")


def host_row(cls: type[R], **values: Any) -> np.ndarray[Any, Any]:
    """One row as int32, for an upload; every field has to be given."""
    parts = []
    for name, (dtype, width) in cls.COLUMNS.items():
        part = np.array(values.pop(name), dtype).reshape(width)
        parts.append(part.view(np.int32))
    assert not values, f"unknown fields {sorted(values)}"
    return np.concatenate(parts)
