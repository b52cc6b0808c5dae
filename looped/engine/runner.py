"""Between scheduler and device: uploads a batch, launches its executable, reads what must be read.

What a kind of launch uploads, runs and reads is its program's to say (`looped.programs`).
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import jax

from looped.device.prompt_pool import PromptPool
from looped.device.reader import HostReader
from looped.device.state import DeviceState
from looped.programs.executables import Executables
from looped.programs.packer import Packer
from looped.programs.parameters import Parameters
from looped.programs.registry import PROGRAMS
from looped.programs.sampling.slot_edits import SlotEdits
from looped.sched import Batch, Ladder, LaunchKind, LaunchResult, Rung, calls_of

from .records import ItemRecord, LaunchRecord

RECORDS_KEPT = 10_000


@dataclass(frozen=True)
class PackedLaunch:
    """A batch on its way: its executable, and an upload for each call of it."""

    batch: Batch
    rung: Rung
    executable: Any
    uploads: tuple[jax.Array, ...]
    slot_writer: Any
    slot_uploads: tuple[jax.Array, ...]
    """Logit edits of requests that are new on the device, for `slot_writer` before the launch."""


@dataclass(frozen=True)
class Launched:
    """A batch under way; `output` is what the host has to read, None for nothing."""

    batch: Batch
    output: jax.Array | None


class Runner:
    """Owns device state and prompt pool. `launch` donates the state and keeps the new one.

    Args:
        parameters: the model and the look-ahead head.
        executables: compiled steps of this shape.
        ladders: row buckets by launch kind.
        records_gates: run the gate in every pass of a decode row, and read what it says.
    """

    def __init__(
        self,
        parameters: Parameters,
        executables: Executables,
        ladders: dict[LaunchKind, Ladder],
        *,
        records_gates: bool = False,
    ) -> None:
        self.executables = executables
        self.reader = HostReader()
        self.records: deque[LaunchRecord] = deque(maxlen=RECORDS_KEPT)
        self.prompt_pool = PromptPool(executables.shape.num_prompt_places)
        self._leaves = jax.tree.leaves(parameters)
        self._ladders = ladders
        self._records_gates = records_gates
        self._num_launches = 0
        self._start()

    def reset(self) -> None:
        """Fresh device state for the same executables. The old one goes first: a GPU holds one."""
        self.delete_state()
        self._start()

    def delete_state(self) -> None:
        """Frees the device state; nothing can be launched until `reset`."""
        for leaf in jax.tree.leaves(self._state):
            leaf.delete()

    def _start(self) -> None:
        self._state = DeviceState.zeros(self.executables.shape)
        self._packer = Packer(self.executables.shape, records_gates=self._records_gates)
        self._slot_edits = SlotEdits(self.executables.shape)

    @property
    def state(self) -> DeviceState:
        """The newest device state; donated to the next launch."""
        return self._state

    def pack(self, batch: Batch) -> PackedLaunch:
        """Pads the batch to its bucket and uploads it, in one transfer per call.

        A request with logit edits costs one transfer more, with the first launch it is in.
        Nothing is lost yet if this fails: the device state is not touched.
        """
        calls = calls_of(batch, self._ladders)
        rung = calls.kind, calls.bucket
        program, layout = PROGRAMS[calls.kind], self.executables.layout(rung)
        buffers = [
            self._packer.pack(program, batch, layout, index) for index in range(calls.num_calls)
        ]
        # A CPU launch may read the buffer's own memory while it runs, also with may_alias=False
        # (measured, jax 0.10.2): it is never written again.
        uploads = tuple(jax.device_put(buffer) for buffer in buffers)
        slot_uploads = tuple(map(jax.device_put, self._slot_edits.pack_new(batch)))
        return PackedLaunch(
            batch,
            rung,
            self.executables.get(rung),
            uploads,
            self.executables.slot_writer,
            slot_uploads,
        )

    def launch(self, packed: PackedLaunch) -> Launched:
        """Starts a launch and returns before it has run.

        The state is donated, so a failure from here on loses it.
        """
        batch, output = packed.batch, None
        for upload in packed.slot_uploads:
            self._state = packed.slot_writer(self._state, upload)
        for upload in packed.uploads:
            self._state, output = packed.executable(self._leaves, self._state, upload)
        self._record(packed)
        if output is None or not (batch.is_read or self._records(batch)):
            return Launched(batch, None)
        self.reader.start(output)
        return Launched(batch, output)

    def wait(self) -> None:
        """Returns when the device has run every launch; reads nothing."""
        self.reader.wait(self._state)

    def collect(self, launched: Launched) -> LaunchResult:
        """The launch's result; reads from the device only if the batch says so."""
        batch, output = launched.batch, launched.output
        values = None if output is None else self.reader.read(output)
        return PROGRAMS[batch.launch].collect(batch, values)

    def _records(self, batch: Batch) -> bool:
        """Whether gates of the launch are to be recorded."""
        return self._records_gates and batch.launch.runs_layers and batch.num_decode > 0

    def _record(self, packed: PackedLaunch) -> None:
        batch = packed.batch
        records_gates = self._records(batch)
        items = tuple(ItemRecord.of(item, item.request.slot) for item in batch.items)
        self.records.append(
            LaunchRecord(
                index=self._num_launches,
                kind=batch.launch,
                bucket=packed.rung[1],
                num_rows=batch.num_rows,
                num_passes=batch.num_passes if batch.launch.runs_layers else 0,
                num_calls=len(packed.uploads),
                num_count_uploads=len(packed.slot_uploads),
                runs_gate=batch.runs_gate or records_gates,
                records_gates=records_gates,
                num_readbacks=int(batch.is_read or records_gates),
                items=items,
            )
        )
        self._num_launches += 1
