"""What has to be written into the request table before a launch: the host's view of the table."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from looped.device.state import StateShape
from looped.sched import Batch, Request

from ..packed_layout import Buffer, PackedLayout
from ..sampling.request_sampling import sampling_of
from .admit import admit_layout, pack_admit
from .edit import edit_layout, pack_edit
from .grow import grow_layout, num_groups

Write = tuple[str, Buffer]
"""Name of a writer, and its upload."""


class DueWrites:
    """Knows whose row is in each slot, and how many of its blocks are there.

    A request is known by its object: a slot's next owner may have the same id.
    """

    def __init__(self, shape: StateShape) -> None:
        self._owners: list[Request | None] = [None] * shape.max_num_seqs
        self._num_blocks = [0] * shape.max_num_seqs
        self._num_groups = num_groups(shape)
        self._admit, self._grow, self._edit = (
            layout(shape) for layout in (admit_layout, grow_layout, edit_layout)
        )

    def before(self, batch: Batch) -> list[Write]:
        """What a launch needs that is not in the table; from then on it counts as written."""
        writes: list[Write] = []
        grown: list[tuple[Request, int]] = []
        for item in batch.items:
            request, slot = item.request, item.request.slot
            num_blocks = len(request.block_tables[0])
            if self._owners[slot] is not request:
                self._owners[slot] = request
                writes += self._admitted(request)
            elif self._num_blocks[slot] < num_blocks:
                grown += [(request, index) for index in range(self._num_blocks[slot], num_blocks)]
            self._num_blocks[slot] = num_blocks
        if grown:
            writes += self._grown(grown)
        return writes

    def _admitted(self, request: Request) -> Iterator[Write]:
        buffer, arrays = _buffer(self._admit)
        pack_admit(request, arrays)
        yield "admit", buffer
        if sampling_of(request).is_edited:
            buffer, arrays = _buffer(self._edit)
            pack_edit(request, arrays)
            yield "edit", buffer

    def _grown(self, groups: list[tuple[Request, int]]) -> Iterator[Write]:
        for start in range(0, len(groups), self._num_groups):
            buffer, arrays = _buffer(self._grow)
            arrays.slots[:] = len(self._owners)
            for place, (request, index) in enumerate(groups[start : start + self._num_groups]):
                arrays.slots[place] = request.slot
                arrays.indices[place] = index
                arrays.blocks[place] = [table[index] for table in request.block_tables]
            yield "grow", buffer


def _buffer(layout: PackedLayout[Any]) -> tuple[Buffer, Any]:
    buffer = np.zeros(layout.size, np.int32)
    return buffer, layout.host_views(buffer)
