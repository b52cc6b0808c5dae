"""What a launch sends to the device: named arrays in one int32 buffer, so one transfer.

A class below names the arrays of a launch kind. The host fills NumPy views into the buffer under
those names, the step reads JAX slices of it under the same names. Floats travel as their bits.
"""

from dataclasses import dataclass, fields
from math import prod
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from jax import lax

from looped.device.state import StateShape, register_pytree

from .logit_edits import SlotArrays
from .sampler import SamplingRows

A = TypeVar("A")

PackedType = Literal["int32", "float32", "uint32"]

GATE_NONE = 0
"""A decode row whose exit does not depend on a signal of this launch."""
GATE_OURO = 1
"""The model's gate, multiplied into the row's survival product."""
GATE_RANDOM_LOOKAHEAD = 2
"""The random look-ahead head; it has no memory."""
GATE_LOOKAHEAD = 3
"""The trained look-ahead head of the row's loop; no memory either."""
GATE_RECORDED = 4
"""The model's gate by itself, for a record of it; the row's survival product stays as it is."""


@register_pytree
class PromptArrays:
    """Prompt items of a launch; an unused item has no rows. I items, B blocks a table."""

    places: Any
    """[I] place in the prompt pool."""
    first_positions: Any
    """[I] position of the item's first row."""
    first_rows: Any
    """[I] its first row in the batch; the others follow."""
    num_rows: Any
    """[I] how many rows it has."""
    is_embedded: Any
    """[I] 0: its rows come from token_ids; 1: from the prompt pool."""
    finish_slots: Any
    """[I] decode slot that takes its last row after this launch, or max_num_seqs for none."""


@register_pytree
class RecurrentArrays:
    """One pass over decode rows 0..R-1 and prompt items behind them: R decode rows, at most one a
    request, and I prompt items, of which a request may have several."""

    runs_gate: Any
    """[] whether any row needs a gate."""
    token_ids: Any
    """[T] tokens of prompt rows that are embedded in this launch."""
    decode_slots: Any
    """[R] slot of each decode row, or max_num_seqs for none."""
    decode_depths: Any
    """[R] depth that the row runs; at 0 it embeds its slot's last token."""
    decode_positions: Any
    """[R] the row's place in its sequence."""
    decode_gates: Any
    """[R] GATE_NONE, GATE_OURO, GATE_RANDOM_LOOKAHEAD, GATE_LOOKAHEAD or GATE_RECORDED."""
    decode_tables: Any
    """[R B] blocks of the plane of the row's depth."""
    prompts: PromptArrays
    prompt_tables: Any
    """[I B] blocks of the plane of the item's depth."""


@register_pytree
class PrefillArrays:
    """Several passes over prompt items that share a depth."""

    first_depth: Any
    """[] depth of the first pass."""
    num_passes: Any
    """[] how many passes run."""
    token_ids: Any
    """[T] as in RecurrentArrays."""
    prompts: PromptArrays
    prompt_tables: Any
    """[P I B] blocks of every plane."""


@register_pytree
class CodaArrays:
    """LM head and sampling of one row per request."""

    slots: Any
    """[R] slot of each row, or max_num_seqs for none."""
    exit_loops: Any
    """[R] loops that the row's token ran; below P, its deeper planes are filled."""
    offsets: Any
    """[R] the token's place in its block."""
    plane_blocks: Any
    """[R P] the block that holds the token's position, in each plane."""
    needs_top_logprobs: Any
    """[] whether any row wants the log-probabilities of the most likely tokens."""
    sampling: SamplingRows


@register_pytree
class ScoreArrays:
    """LM head at the rows of one prompt item, which wait in the prompt pool."""

    place: Any
    """[] the item's place in the prompt pool."""
    targets: Any
    """[C] the prompt token after each row; what stands behind the last one is not looked at."""
    needs_top_logprobs: Any
    """[] whether the log-probabilities of the most likely tokens are wanted."""


@dataclass(frozen=True)
class PackedField:
    """One array's place in the buffer."""

    start: int
    shape: tuple[int, ...]
    dtype: PackedType

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape)


class PackedLayout(Generic[A]):
    """Where each array of a launch lies in its buffer.

    Args:
        cls: the class that names the arrays; a field that is itself such a class is nested.
        shapes: shape and type of each array, by (dotted) name.
    """

    def __init__(self, cls: type[A], shapes: dict[str, tuple[tuple[int, ...], PackedType]]) -> None:
        self._cls = cls
        self._fields: dict[str, PackedField] = {}
        start = 0
        for name, (shape, dtype) in shapes.items():
            field = PackedField(start, shape, dtype)
            self._fields[name] = field
            start = field.stop
        self.size = start

    def host_views(self, buffer: np.ndarray[Any, Any]) -> A:
        """NumPy views into an int32 buffer of `size`, for the host to fill."""
        return self._build(
            {
                name: buffer[field.start : field.stop].view(field.dtype).reshape(field.shape)
                for name, field in self._fields.items()
            }
        )

    def unpack(self, packed: Any) -> A:
        """The arrays inside a compiled step."""
        return self._build(
            {name: self._slice(packed, field) for name, field in self._fields.items()}
        )

    @staticmethod
    def _slice(packed: Any, field: PackedField) -> Any:
        values = packed[field.start : field.stop].reshape(field.shape)
        if field.dtype == "int32":
            return values
        return lax.bitcast_convert_type(values, np.dtype(field.dtype))

    def _build(self, arrays: dict[str, Any]) -> A:
        return _build_nested(self._cls, arrays, "")


NESTED: dict[str, type[Any]] = {"prompts": PromptArrays, "sampling": SamplingRows}


def _build_nested(cls: type[A], arrays: dict[str, Any], prefix: str) -> A:
    values = {
        field.name: _build_nested(NESTED[field.name], arrays, f"{field.name}.")
        if field.name in NESTED
        else arrays[prefix + field.name]
        for field in fields(cls)  # type: ignore[arg-type]  # all are dataclasses
    }
    return cls(**values)


def recurrent_layout(shape: StateShape, num_rows: int) -> PackedLayout[RecurrentArrays]:
    """Layout of a recurrent launch of T = num_rows."""
    num_decode = min(num_rows, shape.max_num_seqs)
    num_items = min(num_rows, shape.num_prompt_places)
    per_row: tuple[tuple[int, ...], PackedType] = ((num_decode,), "int32")
    return PackedLayout(
        RecurrentArrays,
        {
            "runs_gate": ((), "int32"),
            "token_ids": ((num_rows,), "int32"),
            "decode_slots": per_row,
            "decode_depths": per_row,
            "decode_positions": per_row,
            "decode_gates": per_row,
            "decode_tables": ((num_decode, shape.blocks_per_seq), "int32"),
            **_prompt_shapes(num_items),
            "prompt_tables": ((num_items, shape.blocks_per_seq), "int32"),
        },
    )


def prefill_layout(shape: StateShape, num_rows: int) -> PackedLayout[PrefillArrays]:
    """Layout of a prefill launch of T = num_rows."""
    num_items = min(num_rows, shape.max_num_seqs)  # each of a request of its own
    tables = (shape.config.num_loops, num_items, shape.blocks_per_seq)
    return PackedLayout(
        PrefillArrays,
        {
            "first_depth": ((), "int32"),
            "num_passes": ((), "int32"),
            "token_ids": ((num_rows,), "int32"),
            **_prompt_shapes(num_items),
            "prompt_tables": (tables, "int32"),
        },
    )


def coda_layout(shape: StateShape, num_rows: int) -> PackedLayout[CodaArrays]:
    """Layout of a coda launch of R = num_rows."""
    per_row: tuple[tuple[int, ...], PackedType] = ((num_rows,), "int32")
    return PackedLayout(
        CodaArrays,
        {
            "slots": per_row,
            "exit_loops": per_row,
            "offsets": per_row,
            "plane_blocks": ((num_rows, shape.config.num_loops), "int32"),
            "needs_top_logprobs": ((), "int32"),
            "sampling.temperature": ((num_rows,), "float32"),
            "sampling.top_k": per_row,
            "sampling.top_p": ((num_rows,), "float32"),
            "sampling.min_p": ((num_rows,), "float32"),
            "sampling.is_edited": per_row,
            "sampling.repetition_penalty": ((num_rows,), "float32"),
            "sampling.presence_penalty": ((num_rows,), "float32"),
            "sampling.frequency_penalty": ((num_rows,), "float32"),
            "sampling.min_tokens": per_row,
            "sampling.seed": ((num_rows, 2), "uint32"),
            "sampling.sample_index": per_row,
            "sampling.output_index": per_row,
        },
    )


def score_layout(shape: StateShape, num_rows: int) -> PackedLayout[ScoreArrays]:
    """Layout of a score launch of C = num_rows."""
    return PackedLayout(
        ScoreArrays,
        {
            "place": ((), "int32"),
            "targets": ((num_rows,), "int32"),
            "needs_top_logprobs": ((), "int32"),
        },
    )


def slot_layout(shape: StateShape) -> PackedLayout[SlotArrays]:
    """Layout of the upload that brings one request's marks and bias."""
    width = (shape.config.vocab_size,)
    return PackedLayout(
        SlotArrays,
        {"slot": ((), "int32"), "token_marks": (width, "int32"), "logit_bias": (width, "float32")},
    )


def _prompt_shapes(num_items: int) -> dict[str, tuple[tuple[int, ...], PackedType]]:
    return {f"prompts.{field.name}": ((num_items,), "int32") for field in fields(PromptArrays)}
