"""A target for benchmarks without a model: real scheduler, stub executor, virtual clock.

A launch takes what a test says it takes, so every latency of a run is known beforehand.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stub_executor import VOCAB_SIZE, StubExecutor, StubPayload

from looped.bench.arms import ARMS
from looped.bench.driving import drive
from looped.bench.runs import Place, Run, RunOptions
from looped.bench.workload import WorkItem, Workload
from looped.engine.events import LogEvent
from looped.engine.observer import LaunchRecorder, Moment
from looped.engine.records import HeadRecord, ItemRecord, LaunchRecord
from looped.sched import (
    Batch,
    ExitMode,
    ExitOptions,
    LaunchResult,
    Request,
    Scheduler,
    SchedulerConfig,
    resolve_exit,
)

NUM_PLANES = 4
Duration = Callable[[Batch], float]

OPTIONS = RunOptions(
    num_planes=NUM_PLANES,
    max_num_batched_tokens=16,
    max_num_seqs=6,
    prefill_chunk_size=8,
    block_size=4,
    num_blocks=4 * 6 * 64,
    dtype="float32",
    kv_dtype="float32",
    attention_backend="stub",
    exit_threshold=1.0,
    exits="replay",
)

WORKLOAD = Workload(
    num_decoders=2,
    decoder_prompt_tokens=8,
    output_tokens=40,
    prompt_tokens=32,
    num_prompts=2,
    first_injection=8,
    injection_interval=24,
    vocab_size=VOCAB_SIZE,
)


def duration(batch: Batch) -> float:
    """Seconds of a launch: a pass takes 1 with decode rows alone, 2 with prompt rows; a head takes
    0.125."""
    head = 0.125 if batch.head_items else 0.0
    return batch.num_passes * (1.0 if batch.num_decode == len(batch.items) else 2.0) + head


@dataclass(frozen=True)
class Out:
    """A launch that is out."""

    batch: Batch
    result: LaunchResult
    slots: tuple[int, ...]
    index: int
    ended: float
    """The device is done with it."""


class StubTarget:
    """Serves work items; time passes on a device that runs one launch after the other, and 0.125 s
    on the host before each.

    Args:
        options: sizes; `policy` comes from the arm.
        policy: of the scheduler.
        sink: takes the events.
        seconds: of a launch.
        salt: another one makes other tokens.
    """

    def __init__(
        self,
        options: RunOptions,
        policy: str,
        sink: Callable[[LogEvent], None],
        seconds: Duration = duration,
        salt: str = "",
    ) -> None:
        config = SchedulerConfig(
            num_planes=options.num_planes,
            vocab_size=VOCAB_SIZE,
            num_blocks=options.num_blocks,
            max_model_len=256,
            block_size=options.block_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            prefill_chunk_size=options.prefill_chunk_size,
            prefix_caching=False,
            policy=policy,
            run_ahead=options.run_ahead,
        )
        self.now = self._device_free = 100.0
        self._unread: deque[Out] = deque()
        self._num_ahead = options.run_ahead
        self._threshold = options.exit_threshold if options.exits == "live" else None
        self._executor = StubExecutor(config)
        self._scheduler = Scheduler(config, self._executor)
        self._observer = LaunchRecorder(sink, clock=lambda: self.now)
        self._observer.built(self._scheduler, {}, is_deterministic=False, records_gates=False)
        self._seconds = seconds
        self._salt = salt

    def add_request(self, item: WorkItem) -> None:
        options = (
            ExitOptions(trace=item.trace)
            if item.trace
            else ExitOptions(mode=ExitMode.OURO, threshold=self._threshold or item.exit_threshold)
        )
        request = Request(
            request_id=item.request_id,
            prompt_token_ids=item.prompt_token_ids,
            max_tokens=item.max_tokens,
            exit_rule=resolve_exit(options, ExitOptions(), NUM_PLANES),
            payload=StubPayload(zlib.crc32((item.request_id + self._salt).encode())),
        )
        self._scheduler.add(request)
        self._observer.added(request, self._scheduler)

    def has_unfinished_requests(self) -> bool:
        return self._scheduler.has_unfinished_requests

    def step(self) -> Sequence[str]:
        self._observer.mark(Moment.SCHEDULING)
        batch = self._scheduler.schedule(self.now)
        tokens: list[str] = []
        if batch is not None:
            self._hand_out(batch)
        elif self._unread:
            tokens += self._apply_oldest()
        while len(self._unread) > self._num_ahead:
            tokens += self._apply_oldest()
        return tokens

    def _hand_out(self, batch: Batch) -> None:
        self.now += 0.125  # host time, exact in binary
        self._observer.mark(Moment.STARTING)
        result = self._executor.execute(batch)
        self._device_free = max(self.now, self._device_free) + self._seconds(batch)
        self._observer.mark(Moment.DISPATCHED)
        slots = tuple(item.request.slot for item in batch.items)
        index = self._executor.num_launches - 1
        self._unread.append(Out(batch, result, slots, index, self._device_free))
        self._observer.dispatched(self._scheduler)

    def _apply_oldest(self) -> list[str]:
        self._observer.mark(Moment.AWAITING)
        out = self._unread.popleft()
        self.now = max(self.now, out.ended)
        self._observer.mark(Moment.COLLECTED)
        record = record_of(out)
        update = self._scheduler.apply(out.batch, out.result)
        self._observer.applied(record, update.tokens, self._scheduler, 7)
        for request in update.finished:
            self._observer.ended(request, self._scheduler)
        return [token.request.request_id for token in update.tokens]


def record_of(out: Out) -> LaunchRecord:
    """What the runner records of a launch that is about to be applied, without padding."""
    batch, statuses = out.batch, {}
    if out.result.head is not None:
        requests = [item.request for item in batch.head_items]
        statuses = dict(zip(requests, out.result.head.statuses, strict=True))
    num_heads = len(batch.head_items)
    return LaunchRecord(
        index=out.index,
        kind=batch.launch,
        bucket=batch.num_rows,
        num_rows=batch.num_rows,
        num_passes=batch.num_passes if batch.launch.runs_layers else 0,
        num_calls=1,
        num_writes=0,
        num_readbacks=int(batch.is_read),
        head=HeadRecord("conditional", num_heads, num_heads) if num_heads else None,
        items=tuple(
            ItemRecord.of(item, slot, statuses.get(item.request))
            for item, slot in zip(batch.items, out.slots, strict=True)
        ),
    )


def play(
    arm: str,
    *,
    workload: Workload = WORKLOAD,
    options: RunOptions = OPTIONS,
    place: tuple[int, int, int] = (0, 0, 0),
    seconds: Duration = duration,
    salt: str = "",
) -> Run:
    """One run of an arm on the stub."""
    events: list[LogEvent] = []
    target = StubTarget(options, ARMS[arm].policy, events.append, seconds, salt)
    drive(target, workload, ARMS[arm])
    process, round_index, position = place
    return Run(
        arm=ARMS[arm],
        place=Place(process=process, round=round_index, position=position),
        options=options,
        workload=workload,
        events=tuple(events),
    )
