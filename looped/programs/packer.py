"""Packs batches for the device: pure NumPy, one buffer a call.

Buffers are made anew for every launch, since a device may read the host's own memory while the
launch runs.
"""

from typing import TypeVar

import numpy as np

from looped.device.block_tables import BlockTables
from looped.device.state import StateShape
from looped.sched import Batch

from .packed_layout import Buffer, PackedLayout
from .program import Packing, Program

A = TypeVar("A")


class Packer:
    """Packs the batches of one engine; mirrors the block tables of its requests.

    Args:
        shape: sizes of the device state.
        records_gates: ask for the gate of every decode row in every pass.
    """

    def __init__(self, shape: StateShape, *, records_gates: bool = False) -> None:
        self._tables = BlockTables(shape)
        self._packing = Packing(shape, self._tables.blocks, records_gates)

    def pack(
        self, program: Program[A], batch: Batch, layout: PackedLayout[A], call_index: int = 0
    ) -> Buffer:
        """The upload of one call of a program for a batch.

        Args:
            program: that of the batch's kind, or of the single pass that a launch is split into.
            batch: what is launched.
            layout: of the program, for the rows of the bucket.
            call_index: calls for this batch before this one.
        """
        self._tables.update(item.request for item in batch.items)
        buffer = np.zeros(layout.size, np.int32)
        program.pack(self._packing, batch, layout.host_views(buffer), call_index)
        return buffer
