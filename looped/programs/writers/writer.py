"""What a writer is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from looped.device.state import DeviceState, StateShape

from ..packed_layout import PackedLayout

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class Writer(Generic[A]):
    """A program that changes the request table; A names the arrays of its upload."""

    layout: Callable[[StateShape], PackedLayout[A]]
    """Where those arrays lie."""
    write: Callable[[DeviceState, Any], DeviceState]
    """The state (DONATED) with what the arrays say."""
