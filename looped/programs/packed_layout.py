"""What a launch sends to the device: named arrays in one int32 buffer, so one transfer.

Each program names its arrays in a class and lays them out. The host fills NumPy views into the
buffer under those names, the step reads JAX slices of it under the same names. Floats travel as
their bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from math import prod
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from jax import lax

A = TypeVar("A")

Buffer = np.ndarray[Any, Any]

PackedType = Literal["int32", "float32", "uint32"]
Shapes = dict[str, tuple[tuple[int, ...], PackedType]]
"""Shape and type of each array, by name; those of a nested class are dotted."""


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

    def __init__(self, cls: type[A], shapes: Shapes) -> None:
        self._cls = cls
        self._fields: dict[str, PackedField] = {}
        self._nested: dict[str, tuple[type[Any], dict[str, PackedField]]] = {
            field.name: (field.type, {})
            for field in fields(cls)  # type: ignore[arg-type]  # all are dataclasses
            if isinstance(field.type, type) and is_dataclass(field.type)
        }
        start = 0
        for name, (shape, dtype) in shapes.items():
            packed = PackedField(start, shape, dtype)
            outer, _, inner = name.rpartition(".")
            (self._nested[outer][1] if outer else self._fields)[inner] = packed
            start = packed.stop
        self.size = start

    def host_views(self, buffer: Buffer) -> A:
        """NumPy views into an int32 buffer of `size`, for the host to fill."""
        return self._build(partial(_host_view, buffer))

    def unpack(self, packed: Any) -> A:
        """The arrays inside a compiled step."""
        return self._build(partial(_slice, packed))

    def _build(self, view: Callable[[PackedField], Any]) -> A:
        values = {name: view(field) for name, field in self._fields.items()}
        for outer, (cls, own) in self._nested.items():
            values[outer] = cls(**{name: view(field) for name, field in own.items()})
        return self._cls(**values)


def _host_view(buffer: Buffer, field: PackedField) -> Buffer:
    return buffer[field.start : field.stop].view(field.dtype).reshape(field.shape)


def _slice(packed: Any, field: PackedField) -> Any:
    values = packed[field.start : field.stop].reshape(field.shape)
    if field.dtype == "int32":
        return values
    return lax.bitcast_convert_type(values, np.dtype(field.dtype))
