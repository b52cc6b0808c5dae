"""Between scheduler and device: uploads a batch, launches its executables, reads what they bring.

What a kind of launch uploads and runs is its program's to say (`looped.programs`).
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import jax

from looped.device.prompt_pool import PromptPool
from looped.device.reader import HostReader
from looped.device.state import DeviceState
from looped.programs.executables import Executables, Step
from looped.programs.head import collect_head
from looped.programs.parameters import Parameters
from looped.programs.registry import PROGRAMS
from looped.programs.sampling.forms import ONLY, form_for_heads, form_for_score
from looped.programs.score import collect_score
from looped.programs.writers.due import DueWrites
from looped.sched import (
    PROGRAM_KINDS,
    Batch,
    Ladder,
    LaunchKind,
    LaunchResult,
    calls_of,
    head_bucket,
)

from .records import HeadRecord, ItemRecord, LaunchRecord

RECORDS_KEPT = 10_000


@dataclass(frozen=True)
class PackedLaunch:
    """A batch on its way: its executables, and an upload for each call of the first."""

    batch: Batch
    bucket: int
    executable: Any
    uploads: tuple[jax.Array, ...]
    writes: tuple[tuple[Any, jax.Array], ...]
    """Writers with their uploads, before the launch."""
    head: HeadRecord | None
    head_executable: Any
    """What follows, None where no row may finish."""


@dataclass(frozen=True)
class Launched:
    """A batch that is out."""

    batch: Batch
    index: int
    """Launches before it."""
    packed: PackedLaunch
    slots: tuple[int, ...]
    """Of each item's request, which may have given it back when the launch is applied."""
    score: jax.Array | None
    """What a score brings."""
    head: jax.Array | None
    """What the head brings."""
    ticket: jax.Array
    """Is there when the launch is done."""


class Runner:
    """Owns device state and prompt pool. `launch` donates the state and keeps the new one.

    Args:
        parameters: the model and the look-ahead head.
        executables: compiled steps of this shape.
        ladders: row buckets by program.
        records_gates: give the gates of every token to who asks for its launch's result.
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
        """Of launches that have been applied."""
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
        self._due = DueWrites(self.executables.shape)

    @property
    def state(self) -> DeviceState:
        """The newest device state; donated to the next launch."""
        return self._state

    def pack(self, batch: Batch) -> PackedLaunch:
        """Pads the batch to its bucket and uploads it, in one transfer per call.

        A request that is new on the device, or has claimed blocks since, costs a transfer more.
        Nothing is lost yet if this fails: the device state is not touched.
        """
        shape, executables = self.executables.shape, self.executables
        calls = calls_of(batch, self._ladders)
        rung = calls.kind, calls.bucket
        program, layout = PROGRAMS[calls.kind], executables.layout(rung)
        # A CPU launch may read the buffer's own memory while it runs, also with may_alias=False
        # (measured, jax 0.10.2): it is never written again.
        uploads = [
            jax.device_put(program.packed(shape, batch, layout, index))
            for index in range(calls.num_calls)
        ]
        writes = [
            (executables.writer(name), jax.device_put(buffer))
            for name, buffer in self._due.before(batch)
        ]
        form = ONLY
        if batch.launch.brings_scores:
            form = form_for_score(executables.forms(calls.kind), batch.items[0])
        head_step = self._head_step(batch)
        head = None
        if head_step is not None:
            head = HeadRecord(head_step.form.name, head_step.num_rows, len(batch.head_items))
        return PackedLaunch(
            batch=batch,
            bucket=calls.bucket,
            executable=executables.get(Step(*rung, form)),
            uploads=tuple(uploads),
            writes=tuple(writes),
            head=head,
            head_executable=None if head_step is None else executables.get(head_step),
        )

    def launch(self, packed: PackedLaunch) -> Launched:
        """Starts a launch and returns before it has run.

        The state is donated, so a failure from here on loses it.
        """
        batch, head = packed.batch, None
        for writer, upload in packed.writes:
            self._state = writer(self._state, upload)
        for upload in packed.uploads:
            self._state, ticket = packed.executable(self._leaves, self._state, upload)
        score = ticket if batch.launch.brings_scores else None
        if packed.head_executable is not None:
            self._state, head = packed.head_executable(self._leaves, self._state)
            ticket = head
        for output in (score, head):
            if output is not None:
                self.reader.start(output)
        slots = tuple([item.request.slot for item in batch.items])
        self._num_launches += 1
        return Launched(batch, self._num_launches - 1, packed, slots, score, head, ticket)

    def wait(self, launched: Launched) -> None:
        """Returns when the device has run the launch; reads nothing."""
        self.reader.wait(launched.ticket)

    def collect(self, launched: Launched) -> LaunchResult:
        """The launch's result: waits until it is done, and reads what it brings, at once."""
        batch = launched.batch
        outputs = [output for output in (launched.score, launched.head) if output is not None]
        if not outputs:
            self.wait(launched)
            return LaunchResult()
        values = self.reader.read(*outputs)
        score = collect_score(batch, values[0]) if launched.score is not None else None
        head = None
        if launched.head is not None:
            head = collect_head(
                batch.head_items,
                values[-1],
                num_loops=self.executables.shape.config.num_loops,
                records_gates=self._records_gates,
            )
        return LaunchResult(head, score)

    def record(self, launched: Launched, result: LaunchResult) -> LaunchRecord:
        """What there is to say of a launch that is about to be applied; it is kept, too."""
        batch, packed = launched.batch, launched.packed
        statuses = {}
        if result.head is not None:
            requests = [item.request for item in batch.head_items]
            statuses = dict(zip(requests, result.head.statuses, strict=True))
        record = LaunchRecord(
            index=launched.index,
            kind=batch.launch,
            bucket=packed.bucket,
            num_rows=batch.num_rows,
            num_passes=batch.num_passes if batch.launch.runs_layers else 0,
            num_calls=len(packed.uploads),
            num_writes=len(packed.writes),
            num_readbacks=int(batch.is_read),
            head=packed.head,
            items=tuple(
                ItemRecord.of(item, slot, statuses.get(item.request))
                for item, slot in zip(batch.items, launched.slots, strict=True)
            ),
        )
        self.records.append(record)
        return record

    def _head_step(self, batch: Batch) -> Step | None:
        if not (bucket := head_bucket(batch, self._ladders)):
            return None
        (kind,) = (kind for kind in PROGRAM_KINDS if not kind.is_launched)
        forms = self.executables.forms(kind)
        form = form_for_heads(forms, batch.head_items, self.executables.shape.config.num_loops)
        return Step(kind, bucket, form)
