"""A target for benchmarks without a model: real scheduler, stub executor, virtual clock.

A launch takes what a test says it takes, so every latency of a run is known beforehand.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from stub_executor import VOCAB_SIZE, StubExecutor, StubPayload

from looped.bench.arms import ARMS
from looped.bench.driving import drive
from looped.bench.runs import Place, Run, RunOptions
from looped.bench.workload import WorkItem, Workload
from looped.engine.events import LogEvent
from looped.engine.observer import LaunchRecorder, Moment
from looped.engine.records import ItemRecord, LaunchRecord
from looped.sched import (
    Batch,
    ExitMode,
    ExitOptions,
    LaunchKind,
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
    """Seconds of a launch: a pass takes 1 with decode rows alone, 2 with prompt rows; coda 0.5."""
    if batch.launch is LaunchKind.CODA:
        return 0.5
    return batch.num_passes * (1.0 if batch.num_decode == len(batch.items) else 2.0)


class StubTarget:
    """Serves work items; time passes only in launches.

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
        )
        self.now = 100.0
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
            else ExitOptions(mode=ExitMode.OURO, threshold=item.exit_threshold)
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
        assert batch is not None
        self.now += 0.125  # host time, exact in binary
        self._observer.mark(Moment.STARTING)
        record = record_of(batch, self._executor.num_launches)
        self._observer.mark(Moment.DISPATCHED)
        result = self._executor.execute(batch)
        self.now += self._seconds(batch)
        self._observer.mark(Moment.COLLECTED)
        update = self._scheduler.apply(batch, result)
        self._observer.launched(record, update.tokens, self._scheduler, 7)
        for request in update.finished:
            self._observer.ended(request, self._scheduler)
        return [token.request.request_id for token in update.tokens]


def record_of(batch: Batch, index: int) -> LaunchRecord:
    """What the runner records of a batch, without padding."""
    items = tuple(
        ItemRecord(
            item.request.request_id,
            item.request.sample_index,
            item.kind,
            item.depth,
            item.first_position,
            item.count,
            item.request.slot,
        )
        for item in batch.items
    )
    return LaunchRecord(
        index=index,
        kind=batch.launch,
        bucket=batch.num_rows,
        num_rows=batch.num_rows,
        num_passes=batch.num_passes if batch.launch.runs_layers else 0,
        num_calls=1,
        num_count_uploads=0,
        runs_gate=batch.runs_gate,
        records_gates=False,
        num_readbacks=int(batch.is_read),
        items=items,
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
