"""What each kind of launch is to the engine: one `Program`, a file of its own, in `registry`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from looped.device.state import StateShape
from looped.sched import Batch, ScheduledItem

from .packed_layout import Buffer, PackedLayout
from .sampling.forms import Form

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class Program(Generic[A]):
    """The engine's half of a launch kind; `looped.sched.launches` has the scheduler's.

    A is the class that names the arrays of its upload.
    """

    layout: Callable[[StateShape, int], PackedLayout[A]]
    """Where those arrays lie, for so many rows."""
    pack: Callable[[StateShape, Batch, A, int], None]
    """Fills NumPy views of them, which are zero, from a batch. The number is that of the call,
    where each pass of a batch is a call of its own. Padding is what the step ignores: slot
    `max_num_seqs` is nobody's, an item without rows is unused."""
    step: Callable[[StateShape, str, Form], Callable[..., Any]]
    """For a shape, an attention backend and a form, what is compiled: from Parameters, DeviceState
    (DONATED) and the arrays to the new state and what the host reads, or waits for."""

    def packed(
        self, shape: StateShape, batch: Batch, layout: PackedLayout[A], call_index: int = 0
    ) -> Buffer:
        """The upload of one call for a batch: a new buffer, since a device may read the host's own
        memory while the launch runs."""
        buffer = np.zeros(layout.size, np.int32)
        self.pack(shape, batch, layout.host_views(buffer), call_index)
        return buffer


def slots_of(items: tuple[ScheduledItem, ...]) -> list[int]:
    """The slot of each item's request."""
    return [item.request.slot for item in items]


def pack_head_slots(shape: StateShape, batch: Batch, head_slots: Buffer) -> None:
    """Who may finish in the launch, in the order of the head's record; the rest is nobody."""
    slots = slots_of(batch.head_items)
    head_slots[:] = shape.max_num_seqs
    head_slots[: len(slots)] = slots
