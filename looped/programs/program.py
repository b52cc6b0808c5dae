"""What each kind of launch is to the engine: one `Program`, a file of its own, in `registry`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from looped.device.state import StateShape
from looped.sched import Batch, LaunchResult, ScheduledItem

from .packed_layout import PackedLayout

A = TypeVar("A")


@dataclass(frozen=True)
class Packing:
    """What a program looks up while it packs a batch."""

    shape: StateShape
    blocks: np.ndarray[Any, Any]
    """[slots P B] block tables of the requests in the batch."""
    records_gates: bool
    """Whether the gate of every decode row is asked for, in every pass."""


@dataclass(frozen=True, kw_only=True)
class Program(Generic[A]):
    """The engine's half of a launch kind; `looped.sched.launches` has the scheduler's.

    A is the class that names the arrays of its upload.
    """

    layout: Callable[[StateShape, int], PackedLayout[A]]
    """Where those arrays lie, for so many rows."""
    pack: Callable[[Packing, Batch, A, int], None]
    """Fills NumPy views of them, which are zero, from a batch. The number is that of the call,
    where each pass of a batch is a call of its own. Padding is what the step ignores: slot
    `max_num_seqs` is nobody's, an item without rows is unused."""
    step: Callable[[StateShape, str], Callable[..., Any]]
    """For a shape and an attention backend, what is compiled: from Parameters, DeviceState
    (DONATED) and the arrays to the new state and what the host may read, None for nothing."""
    collect: Callable[[Batch, np.ndarray[Any, Any] | None], LaunchResult]
    """The scheduler's form of what was read; of None if the launch was not read."""


def slots_of(items: tuple[ScheduledItem, ...]) -> list[int]:
    """The slot of each item's request."""
    return [item.request.slot for item in items]
