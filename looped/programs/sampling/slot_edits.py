"""Which slots hold the logit edits of which request, and what a new owner uploads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from looped.device.state import StateShape
from looped.sched import Batch, Request

from .logit_edits import ENDS_REQUEST, IN_PROMPT, slot_layout
from .request_sampling import sampling_of


class SlotEdits:
    """Finds requests whose marks and bias are not on the device yet.

    Every request with edits uploads them once, with the first launch after its admission.
    """

    def __init__(self, shape: StateShape) -> None:
        self._layout = slot_layout(shape)
        self._vocab_size = shape.config.vocab_size
        self._owners: list[Request | None] = [None] * shape.max_num_seqs

    def pack_new(self, batch: Batch) -> Sequence[np.ndarray[Any, Any]]:
        """One buffer for each request that this batch brings to the device for the first time."""
        buffers = []
        for request in (item.request for item in batch.items):
            if sampling_of(request).is_edited and self._owners[request.slot] is not request:
                self._owners[request.slot] = request
                buffers.append(self._pack(request))
        return buffers

    def _pack(self, request: Request) -> np.ndarray[Any, Any]:
        buffer = np.zeros(self._layout.size, np.int32)
        arrays, bias = self._layout.host_views(buffer), sampling_of(request).logit_bias
        arrays.slot[...] = request.slot
        arrays.token_marks[list(request.prompt_token_ids)] = IN_PROMPT
        stops = [stop for stop in request.stop_token_ids if 0 <= stop < self._vocab_size]
        arrays.token_marks[stops] |= ENDS_REQUEST
        arrays.logit_bias[list(bias)] = list(bias.values())
        return buffer
