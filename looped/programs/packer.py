"""Fills the arrays of a launch from a batch: pure NumPy, no device.

Padding is whatever the steps ignore: slot `max_num_seqs` is nobody's, an item without rows is
unused. Buffers are made anew for every launch, since a device may read the host's own memory while
the launch runs.
"""

from typing import Any

import numpy as np

from looped.device.block_tables import BlockTables
from looped.device.prompt_pool import PromptPlace
from looped.device.state import StateShape
from looped.sched import Batch, ExitMode, InterfaceError, ItemKind, ScheduledItem

from .layouts import (
    GATE_LOOKAHEAD,
    GATE_NONE,
    GATE_OURO,
    GATE_RANDOM_LOOKAHEAD,
    GATE_RECORDED,
    CodaArrays,
    PackedLayout,
    PrefillArrays,
    PromptArrays,
    RecurrentArrays,
    ScoreArrays,
)
from .request_sampling import sampling_of

Buffer = np.ndarray[Any, Any]

GATES = {
    ExitMode.OURO: GATE_OURO,
    ExitMode.OURO_DELAYED: GATE_OURO,
    ExitMode.RANDOM_LOOKAHEAD: GATE_RANDOM_LOOKAHEAD,
    ExitMode.LOOKAHEAD: GATE_LOOKAHEAD,
}
"""What a row asks of the device where its mode needs a gate."""


class Packer:
    """Packs the batches of one engine; mirrors the block tables of its requests.

    Args:
        shape: sizes of the device state.
        records_gates: ask for the gate of every decode row in every pass.
    """

    def __init__(self, shape: StateShape, *, records_gates: bool = False) -> None:
        self._shape = shape
        self._records_gates = records_gates
        self._tables = BlockTables(shape)

    def pack_recurrent(
        self, batch: Batch, layout: PackedLayout[RecurrentArrays], pass_index: int = 0
    ) -> Buffer:
        """One pass of a batch: of a prefill batch, the given one of its passes."""
        buffer, arrays = self._start(batch, layout)
        decode, prompts = batch.items[: batch.num_decode], batch.items[batch.num_decode :]
        count, slots, depths = len(decode), _slots(decode), [item.depth for item in decode]
        records_gates = self._records_gates and count > 0
        arrays.runs_gate[...] = batch.runs_gate or records_gates
        arrays.decode_slots[:] = self._shape.max_num_seqs
        arrays.decode_slots[:count] = slots
        arrays.decode_depths[:count] = depths
        arrays.decode_positions[:count] = [item.first_position for item in decode]
        arrays.decode_gates[:count] = (
            GATE_RECORDED if records_gates else [_gate_of(item) for item in decode]
        )
        arrays.decode_tables[:count] = self._tables.blocks[slots, depths]
        self._pack_prompts(prompts, arrays.prompts, arrays.token_ids, count, pass_index, 1)
        arrays.prompt_tables[: len(prompts)] = self._tables.blocks[
            _slots(prompts), [item.depth + pass_index for item in prompts]
        ]
        return buffer

    def pack_prefill(self, batch: Batch, layout: PackedLayout[PrefillArrays]) -> Buffer:
        """All passes of a prefill batch in one launch."""
        buffer, arrays = self._start(batch, layout)
        arrays.first_depth[...] = batch.items[0].depth
        arrays.num_passes[...] = batch.num_passes
        self._pack_prompts(batch.items, arrays.prompts, arrays.token_ids, 0, 0, batch.num_passes)
        slots = _slots(batch.items)
        arrays.prompt_tables[:, : len(slots)] = self._tables.blocks[slots].swapaxes(0, 1)
        return buffer

    def pack_coda(self, batch: Batch, layout: PackedLayout[CodaArrays]) -> Buffer:
        """The LM-head rows of a coda batch."""
        buffer, arrays = self._start(batch, layout)
        count, slots = len(batch.items), _slots(batch.items)
        positions = np.array([item.first_position for item in batch.items])
        block_size = self._shape.block_size
        arrays.slots[:] = self._shape.max_num_seqs
        arrays.slots[:count] = slots
        arrays.exit_loops[:count] = [item.exit_loop for item in batch.items]
        arrays.offsets[:count] = positions % block_size
        arrays.plane_blocks[:count] = self._tables.blocks[slots, :, positions // block_size]
        samplings = [sampling_of(item.request) for item in batch.items]
        for index, sampling in enumerate(samplings):
            sampling.write(arrays.sampling, index)
        arrays.needs_top_logprobs[...] = any(sampling.num_logprobs for sampling in samplings)
        arrays.sampling.sample_index[:count] = [item.request.sample_index for item in batch.items]
        arrays.sampling.output_index[:count] = [item.output_index for item in batch.items]
        return buffer

    def pack_score(self, batch: Batch, layout: PackedLayout[ScoreArrays]) -> Buffer:
        """The rows of one prompt item that have a next token in the prompt."""
        buffer, arrays = self._start(batch, layout)
        (item,) = batch.items
        request, first_target = item.request, item.first_position + 1
        arrays.place[...] = _place_of(item).index
        arrays.targets[: item.count] = request.prompt_token_ids[
            first_target : first_target + item.count
        ]
        arrays.needs_top_logprobs[...] = bool(sampling_of(request).num_prompt_logprobs)
        return buffer

    def _start(self, batch: Batch, layout: PackedLayout[Any]) -> tuple[Buffer, Any]:
        self._tables.update(item.request for item in batch.items)
        buffer = np.zeros(layout.size, np.int32)
        return buffer, layout.host_views(buffer)

    def _pack_prompts(
        self,
        items: tuple[ScheduledItem, ...],
        arrays: PromptArrays,
        token_ids: Buffer,
        first_row: int,
        first_pass: int,
        num_passes: int,
    ) -> None:
        """Prompt items for `num_passes` of their passes, from the first_pass-th on."""
        num_loops, no_slot = self._shape.config.num_loops, self._shape.max_num_seqs
        arrays.finish_slots[:] = no_slot
        for index, item in enumerate(items):
            request, work = item.request, item.prompt_item
            assert work is not None
            is_embedded = work.embedded or first_pass > 0
            is_last = item.depth + first_pass + num_passes == num_loops
            arrays.places[index] = _place_of(item).index
            arrays.first_positions[index] = item.first_position
            arrays.first_rows[index] = first_row
            arrays.num_rows[index] = item.count
            arrays.is_embedded[index] = is_embedded
            arrays.finish_slots[index] = request.slot if is_last else no_slot
            if not is_embedded:
                token_ids[first_row : first_row + item.count] = request.prompt_token_ids[
                    item.first_position : item.first_position + item.count
                ]
            first_row += item.count


def _slots(items: tuple[ScheduledItem, ...]) -> list[int]:
    return [item.request.slot for item in items]


def _place_of(item: ScheduledItem) -> PromptPlace:
    assert item.prompt_item is not None
    place = item.prompt_item.state
    if not isinstance(place, PromptPlace) or place.owner is not item.request:
        raise InterfaceError("expected prompt state of the item's own request")
    return place


def _gate_of(item: ScheduledItem) -> int:
    assert item.kind is ItemKind.DECODE
    if not item.runs_gate:
        return GATE_NONE
    return GATES[item.request.exit_rule.mode]
