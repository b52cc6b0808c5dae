"""Between scheduler and device: packs a batch, launches its executable, reads what must be read."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from looped.sched import (
    Batch,
    CodaResult,
    InterfaceError,
    ItemKind,
    Ladder,
    LaunchKind,
    RecurrentResult,
    Request,
    ScheduledItem,
    bucket_for,
)

from .executables import Executables, Rung
from .packing import (
    GATE_LOOKAHEAD,
    GATE_NONE,
    GATE_OURO,
    CodaArrays,
    PrefillArrays,
    PromptArrays,
    RecurrentArrays,
)
from .reader import HostReader
from .records import ItemRecord, LaunchRecord
from .requests import RequestSampling
from .state import DeviceState
from .steps import Parameters
from .tables import BlockTables

RECORDS_KEPT = 10_000


@dataclass(frozen=True, eq=False)
class PromptPlace:
    """A prompt item's place in the prompt pool, and whose it is."""

    index: int
    request: Request


@dataclass(frozen=True)
class PackedLaunch:
    """A batch as it goes to the device."""

    batch: Batch
    rung: Rung
    executable: Any
    uploaded: jax.Array


@dataclass(frozen=True)
class Launched:
    """A batch under way; `output` is what the host may have to read."""

    batch: Batch
    output: jax.Array | None


class Runner:
    """Owns device state and prompt places. `launch` donates the state and keeps the new one.

    Args:
        parameters: the model and the look-ahead head.
        executables: compiled steps of this shape.
        ladders: row buckets by launch kind.
    """

    def __init__(
        self,
        parameters: Parameters,
        executables: Executables,
        ladders: dict[LaunchKind, Ladder],
    ) -> None:
        self.executables = executables
        self.reader = HostReader()
        self.records: deque[LaunchRecord] = deque(maxlen=RECORDS_KEPT)
        self._shape = executables.shape
        self._leaves = jax.tree.leaves(parameters)
        self._ladders = ladders
        self._num_launches = 0
        self.reset()

    def reset(self) -> None:
        """Fresh device state for the same executables; every place is free."""
        self._state = DeviceState.zeros(self._shape)
        self._tables = BlockTables(self._shape)
        self._free_places = list(range(self._shape.max_num_seqs - 1, -1, -1))

    @property
    def state(self) -> DeviceState:
        """The newest device state; donated to the next launch."""
        return self._state

    @property
    def num_free_places(self) -> int:
        """Places of the prompt pool that no item holds."""
        return len(self._free_places)

    def acquire(self, request: Request) -> PromptPlace:
        """A place in the prompt pool for one item of `request` (`PromptStateOwner`)."""
        return PromptPlace(self._free_places.pop(), request)

    def release(self, handle: Any) -> None:
        """Takes a place back (`PromptStateOwner`)."""
        assert isinstance(handle, PromptPlace)
        self._free_places.append(handle.index)

    def pack(self, batch: Batch) -> PackedLaunch:
        """Pads the batch to its bucket and uploads it, in one transfer.

        Nothing is lost yet if this fails: the device state is not touched.
        """
        rung = (batch.launch, bucket_for(self._ladders[batch.launch], batch.num_rows))
        layout = self.executables.layout(rung)
        buffer = np.zeros(layout.size, np.int32)
        arrays = layout.host_views(buffer)
        self._tables.update(item.request for item in batch.items)
        if isinstance(arrays, CodaArrays):
            self._pack_coda(batch, arrays)
        elif isinstance(arrays, PrefillArrays):
            self._pack_prefill(batch, arrays)
        else:
            self._pack_recurrent(batch, arrays)
        # A CPU launch may read this very memory while it runs, also with may_alias=False
        # (measured, jax 0.10.2): the buffer is made anew for each launch and never written again.
        return PackedLaunch(batch, rung, self.executables.get(rung), jax.device_put(buffer))

    def launch(self, packed: PackedLaunch) -> Launched:
        """Starts a launch and returns before it has run.

        The state is donated, so a failure from here on loses it.
        """
        result = packed.executable(self._leaves, self._state, packed.uploaded)
        if packed.batch.launch is LaunchKind.PREFILL:
            self._state, output = result, None
        else:
            self._state, output = result
        self._record(packed)
        if output is None or not packed.batch.is_read:
            return Launched(packed.batch, None)
        output.copy_to_host_async()
        return Launched(packed.batch, output)

    def collect(self, launched: Launched) -> RecurrentResult | CodaResult:
        """The launch's result; reads from the device only if the batch says so."""
        batch = launched.batch
        if launched.output is None:
            return RecurrentResult(None)
        values = self.reader.read(launched.output)
        if batch.launch is LaunchKind.CODA:
            token_ids, bits, is_finite = values[:, : len(batch.items)]
            return CodaResult(
                token_ids.tolist(), bits.view(np.float32).tolist(), (is_finite != 0).tolist()
            )
        return RecurrentResult(values[: batch.num_decode].tolist())

    def _pack_recurrent(self, batch: Batch, arrays: RecurrentArrays) -> None:
        decode = batch.items[: batch.num_decode]
        slots = [item.request.slot for item in decode]
        depths = [item.depth for item in decode]
        count = len(decode)
        arrays.runs_gate[...] = batch.runs_gate
        arrays.decode_slots[:] = self._shape.max_num_seqs
        arrays.decode_slots[:count] = slots
        arrays.decode_depths[:count] = depths
        arrays.decode_positions[:count] = [item.first_position for item in decode]
        arrays.decode_gates[:count] = [_gate_of(item) for item in decode]
        arrays.decode_tables[:count] = self._tables.blocks[slots, depths]
        prompts = batch.items[count:]
        self._pack_prompts(prompts, arrays.prompts, arrays.token_ids, count, num_passes=1)
        arrays.prompt_tables[: len(prompts)] = self._tables.blocks[
            [item.request.slot for item in prompts], [item.depth for item in prompts]
        ]

    def _pack_prefill(self, batch: Batch, arrays: PrefillArrays) -> None:
        arrays.first_depth[...] = batch.items[0].depth
        arrays.num_passes[...] = batch.num_passes
        self._pack_prompts(batch.items, arrays.prompts, arrays.token_ids, 0, batch.num_passes)
        slots = [item.request.slot for item in batch.items]
        arrays.prompt_tables[:, : len(slots)] = self._tables.blocks[slots].swapaxes(0, 1)

    def _pack_prompts(
        self,
        items: tuple[ScheduledItem, ...],
        arrays: PromptArrays,
        token_ids: np.ndarray[Any, Any],
        first_row: int,
        num_passes: int,
    ) -> None:
        num_loops, no_slot = self._shape.config.num_loops, self._shape.max_num_seqs
        arrays.finish_slots[:] = no_slot
        for index, item in enumerate(items):
            request, work = item.request, item.prompt_item
            assert work is not None
            place = work.state
            if not isinstance(place, PromptPlace) or place.request is not request:
                raise InterfaceError("expected prompt state of the item's own request")
            arrays.places[index] = place.index
            arrays.first_positions[index] = item.first_position
            arrays.first_rows[index] = first_row
            arrays.num_rows[index] = item.count
            arrays.is_embedded[index] = work.embedded
            is_last_pass = item.depth + num_passes == num_loops
            arrays.finish_slots[index] = request.slot if is_last_pass else no_slot
            if not work.embedded:
                token_ids[first_row : first_row + item.count] = request.prompt_token_ids[
                    item.first_position : item.first_position + item.count
                ]
            first_row += item.count

    def _pack_coda(self, batch: Batch, arrays: CodaArrays) -> None:
        requests = [item.request for item in batch.items]
        count = len(requests)
        slots = np.array([request.slot for request in requests])
        positions = np.array([item.first_position for item in batch.items])
        arrays.slots[:] = self._shape.max_num_seqs
        arrays.slots[:count] = slots
        arrays.exit_loops[:count] = [item.exit_loop for item in batch.items]
        arrays.offsets[:count] = positions % self._shape.block_size
        arrays.plane_blocks[:count] = self._tables.blocks[
            slots, :, positions // self._shape.block_size
        ]
        options = [request.payload for request in requests]
        for index, option in enumerate(options):
            assert isinstance(option, RequestSampling)
            option.write(arrays.sampling, index)
        arrays.sampling.output_index[:count] = [item.output_index for item in batch.items]

    def _record(self, packed: PackedLaunch) -> None:
        batch = packed.batch
        self.records.append(
            LaunchRecord(
                index=self._num_launches,
                kind=batch.launch,
                bucket=packed.rung[1],
                num_rows=batch.num_rows,
                num_passes=0 if batch.launch is LaunchKind.CODA else batch.num_passes,
                runs_gate=batch.runs_gate,
                num_readbacks=int(batch.is_read),
                items=tuple(
                    ItemRecord(
                        item.request.request_id,
                        item.kind,
                        item.depth,
                        item.first_position,
                        item.count,
                    )
                    for item in batch.items
                ),
            )
        )
        self._num_launches += 1


def _gate_of(item: ScheduledItem) -> int:
    assert item.kind is ItemKind.DECODE
    if not item.runs_gate:
        return GATE_NONE
    is_lookahead = item.request.exit_rule.mode == "random_lookahead"
    return GATE_LOOKAHEAD if is_lookahead else GATE_OURO
