"""The scheduler's block tables, mirrored as one array so that packing a launch is a gather."""

from collections.abc import Iterable

import numpy as np

from looped.sched import Request

from .state import StateShape


class BlockTables:
    """Block ids by slot, plane and block index; kept up to date with what requests have claimed.

    Tables only grow while a request is active, so an update copies new entries alone.
    """

    def __init__(self, shape: StateShape) -> None:
        size = (shape.max_num_seqs, shape.config.num_loops, shape.blocks_per_seq)
        self.blocks = np.zeros(size, np.int32)
        self._owners: list[Request | None] = [None] * shape.max_num_seqs
        self._num_blocks = [0] * shape.max_num_seqs

    def update(self, requests: Iterable[Request]) -> None:
        """Copies what these requests have claimed since they were last seen."""
        for request in requests:
            slot = request.slot
            if self._owners[slot] is not request:
                self._owners[slot] = request
                self._num_blocks[slot] = 0
            known, current = self._num_blocks[slot], len(request.block_tables[0])
            if known == current:
                continue
            for plane, table in enumerate(request.block_tables):
                self.blocks[slot, plane, known:current] = table[known:]
            self._num_blocks[slot] = current
