"""An executor without a model: it obeys every batch and checks that obeying is safe.

It stands where the runner stands in the engine. It keeps a shadow of device state that records
who wrote what: KV per (block, offset in block), hidden rows per prompt state, and a row per slot
that decides its exits, draws its tokens and ends on its own, as the device does. Every row's
context is checked before its results are made up, so a scheduler that mixes up blocks, slots,
depths or order fails here and not in a model's numbers. Signals and tokens depend only on the
request's seed, the output index and the loop: every policy must get the same ones, at every
run_ahead.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

from looped.sched import (
    NO_SLOT,
    Batch,
    ExitDecision,
    FinishReason,
    HeadResult,
    ItemKind,
    LaunchKind,
    LaunchResult,
    PromptStateHandle,
    Request,
    RowStatus,
    ScheduledItem,
    Scheduler,
    SchedulerConfig,
    ScoreResult,
    Stage,
    StepUpdate,
    decide,
    is_deciding,
)

VOCAB_SIZE = 50
KNOWN_STOPS = 2
"""Stop ids of a request that the device knows; of more, the rest end it on the host alone."""


@dataclass(frozen=True)
class StubPayload:
    """What the stub reads from `Request.payload`."""

    seed: int
    """Fixes every signal and token of the request."""
    non_finite_at: int | None = None
    """Output index whose logits are not finite; -1 for those of the prompt."""


@dataclass(eq=False)
class StubState:
    """Prompt state that knows its owner and what its rows hold."""

    owner: Request
    is_released: bool = False
    content: tuple[int, int, int] | None = None
    """(first position, count, depths run)."""


@dataclass(eq=False)
class StubRow:
    """What the device keeps of the request in a slot."""

    owner: Request
    output_index: int = 0
    """Of the output token that its row leads to."""
    loops_done: int = 0
    is_exit_pending: bool = False
    is_leaving: bool = False
    """It has left the loop, and waits for the head of its launch."""
    is_done: bool = False
    exit_depths: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Of the token that its row feeds."""
        return self.owner.num_prompt_tokens + self.output_index - 1


class StubExecutor:
    """Runs batches of one Scheduler, in the order in which they were scheduled.

    Args:
        config: the scheduler's.
        max_window: prompt items that a request may have under way.
    """

    def __init__(self, config: SchedulerConfig, max_window: int = 1) -> None:
        self.config = config
        self.max_window = max_window
        self.num_launches = 0
        self.num_reads = 0
        self.num_mixed_launches = 0
        self.rows_run: Counter[Request] = Counter()
        """Rows times passes, of each request; masked rows, and those of a head, are not counted."""
        self.num_head_rows = 0
        self.rows_masked: Counter[Request] = Counter()
        """Launches in which a decode row rode although it had ended on the device."""
        self.last_launch: dict[Request, int] = {}
        """Number of the launch that a request was last part of."""
        self.outstanding: set[StubState] = set()
        self._kv: dict[tuple[int, int], object] = {}
        self._rows: dict[int, StubRow] = {}
        self._prompt_ends: dict[Request, list[int]] = {}
        """Prompt tokens that finished launches have written, in each plane."""

    def acquire(self, request: Request) -> StubState:
        """Hand out prompt state; the pool has as many as there are slots, times the window."""
        num_held = sum(state.owner is request for state in self.outstanding)
        assert num_held < self.max_window
        state = StubState(request)
        self.outstanding.add(state)
        assert len(self.outstanding) <= self.config.max_num_seqs * self.max_window
        return state

    def release(self, handle: PromptStateHandle) -> None:
        """Take prompt state back, once."""
        assert isinstance(handle, StubState)
        assert not handle.is_released, "prompt state released twice"
        handle.is_released = True
        self.outstanding.remove(handle)

    def execute(self, batch: Batch) -> LaunchResult:
        """Run a batch against the shadow state and make up its results."""
        self._check_batch(batch)
        self.num_launches += 1
        self.num_reads += batch.is_read
        self.num_mixed_launches += 0 < batch.num_decode < len(batch.items)
        for item in batch.items:
            self.last_launch[item.request] = self.num_launches
            self._row(item.request)
        score = None
        if batch.launch is LaunchKind.SCORE:
            (item,) = batch.items
            score = self._score_result(item)
            self._finish_prompt(item, batch)
        else:
            self._run_passes(batch)
        return LaunchResult(self._head_result(batch), score)

    def _run_passes(self, batch: Batch) -> None:
        self._check_prompt_order(batch)
        for pass_index in range(batch.num_passes):
            runs = [run for item in batch.items if (run := self._run_of(item, pass_index))]
            for run in runs:
                self._write_kv(*run)
            # Attention comes after every write, as on the device.
            for run in runs:
                self._attend(*run)
            for item in batch.items:
                if item.kind is ItemKind.PROMPT:
                    self._advance_state(item, item.known_depth + pass_index)
        for item in batch.items:
            if item.kind is ItemKind.DECODE:
                self._advance_row(item)
                continue
            self.rows_run[item.request] += item.count * batch.num_passes
            for plane in range(item.known_depth, item.known_depth + batch.num_passes):
                self._prompt_ends[item.request][plane] += item.count
            self._finish_prompt(item, batch)

    def _run_of(self, item: ScheduledItem, pass_index: int) -> tuple[Request, int, int, int] | None:
        """Request, plane, first position and number of an item's rows; None of a masked row."""
        if item.kind is ItemKind.PROMPT:
            plane = item.known_depth + pass_index
            return item.request, plane, item.first_position, item.count
        row = self._row(item.request)
        return None if row.is_done else (row.owner, row.loops_done, row.position, 1)

    def _row(self, request: Request) -> StubRow:
        """The row of a request's slot; a new owner's is written before its first launch."""
        row = self._rows.get(request.slot)
        if row is None or row.owner is not request:
            row = self._rows[request.slot] = StubRow(request)
        return row

    def _advance_row(self, item: ScheduledItem) -> None:
        request = item.request
        row = self._row(request)
        if row.is_done:
            self.rows_masked[request] += 1
            return
        self._check_view(item, row)
        self.rows_run[request] += 1
        row.loops_done += 1
        signal = signal_of(payload_of(request).seed, row.output_index, row.loops_done)
        rule, loop = request.exit_rule, row.loops_done
        if not is_deciding(rule, loop, row.is_exit_pending):
            signal = float("nan")  # poison: nobody may look at it
        decision = decide(rule, loop, signal, row.is_exit_pending, row.output_index)
        row.is_leaving = decision is ExitDecision.EXIT
        row.is_exit_pending = decision is ExitDecision.EXIT_NEXT
        assert not row.is_leaving or item.passes_to_head == 1, "it leaves, and no head follows"

    @staticmethod
    def _check_view(item: ScheduledItem, row: StubRow) -> None:
        """Check that what the scheduler says of a living row is so."""
        assert row.output_index >= 1, "its prompt has not brought a token"
        assert item.depth in (None, row.loops_done)
        assert item.output_index in (None, row.output_index)
        assert item.is_exit_pending in (None, row.is_exit_pending)
        assert item.first_position >= row.position
        is_certain = item.depth is not None and item.output_index is not None
        assert not is_certain or item.first_position == row.position

    def _finish_prompt(self, item: ScheduledItem, batch: Batch) -> None:
        """The first token is drawn from the prompt's last row."""
        if item.passes_to_head == batch.num_passes:
            row = self._row(item.request)
            row.loops_done, row.is_leaving = self.config.num_planes, True

    def _check_batch(self, batch: Batch) -> None:
        assert batch.items
        assert batch.num_rows <= self.config.max_num_batched_tokens
        kinds = [item.kind for item in batch.items]
        assert kinds == sorted(kinds, key=lambda kind: kind is ItemKind.PROMPT)
        requests = [item.request for item in batch.items]
        for request, num_items in Counter(requests).items():
            if num_items > 1:
                items = [item for item in batch.items if item.request is request]
                assert batch.launch is LaunchKind.RECURRENT
                assert {item.kind for item in items} == {ItemKind.PROMPT}
                assert len({item.depth for item in items}) == num_items <= self.max_window
        slots = [request.slot for request in dict.fromkeys(requests)]
        assert NO_SLOT not in slots
        assert len(set(slots)) == len(slots)
        assert max(slots) < self.config.max_num_seqs
        assert (batch.num_passes > 1) == (batch.launch is LaunchKind.PREFILL)
        if batch.launch is LaunchKind.PREFILL:
            assert {item.kind for item in batch.items} == {ItemKind.PROMPT}
            assert {item.depth for item in batch.items} == {0}
            assert batch.num_passes == self.config.num_planes
        heads = [item.request for item in batch.head_items]
        assert len(set(heads)) == len(heads)
        for item in batch.items:
            if item.depth is None:
                assert item.kind is ItemKind.DECODE
                continue
            assert 0 <= item.depth <= self.config.num_planes - batch.num_passes

    def _check_prompt_order(self, batch: Batch) -> None:
        """Check that every row of the prompt before an item has been through the item's planes.

        In an earlier launch: that the rows of this one are written before any row attends is the
        device's business, and no reason to run two chunks at one depth together.
        """
        num_planes = self.config.num_planes
        for item in batch.items:
            if item.kind is not ItemKind.PROMPT:
                continue
            cached = [item.request.num_cached_tokens] * num_planes
            ends = self._prompt_ends.setdefault(item.request, cached)
            for plane in range(item.known_depth, item.known_depth + batch.num_passes):
                assert ends[plane] == item.first_position, f"plane {plane} is not written yet"

    def _cell(self, request: Request, plane: int, position: int) -> tuple[int, int]:
        block = request.block_tables[plane][position // self.config.block_size]
        return block, position % self.config.block_size

    def _write_kv(self, request: Request, plane: int, first_position: int, count: int) -> None:
        for position in range(first_position, first_position + count):
            cell = self._cell(request, plane, position)
            self._kv[cell] = content_of(request, plane, position, version=plane)

    def _attend(self, request: Request, plane: int, first_position: int, count: int) -> None:
        depths = self._row(request).exit_depths
        for position in range(first_position + count):
            # The row that feeds output i stands behind the prompt and leads to output i + 1.
            index = position - request.num_prompt_tokens + 1
            version = plane
            if 1 <= index < len(depths):
                version = min(plane, depths[index] - 1)
            expected = content_of(request, plane, position, version)
            found = self._kv.get(self._cell(request, plane, position))
            assert found == expected, f"plane {plane}, position {position}: {found} != {expected}"

    def _advance_state(self, item: ScheduledItem, depth: int) -> None:
        assert item.prompt_item is not None
        state = item.prompt_item.state
        assert isinstance(state, StubState)
        assert state.owner is item.request
        rows = (item.first_position, item.count)
        assert state.content == (None if depth == 0 else (*rows, depth))
        state.content = (*rows, depth + 1)

    def _score_result(self, item: ScheduledItem) -> ScoreResult:
        request, work = item.request, item.prompt_item
        assert work is not None
        assert isinstance(work.state, StubState)
        assert work.state.content == (work.token_start, work.token_count, item.known_depth + 1)
        assert item.count > 0
        targets = range(item.first_position + 1, item.first_position + item.count + 1)
        assert targets.stop <= request.num_prompt_tokens
        return ScoreResult(
            logprobs=[score_of(request, position, item.known_depth + 1) for position in targets],
            best_token_ids=[position % VOCAB_SIZE for position in targets],
            is_finite=payload_of(request).non_finite_at != -1,
        )

    def _head_result(self, batch: Batch) -> HeadResult | None:
        if not batch.head_items:
            return None
        rows = [self._row(item.request) for item in batch.head_items]
        self.num_head_rows += len(rows)
        loops = [row.loops_done for row in rows]
        indices = [row.output_index for row in rows]
        statuses = [self._status(row) for row in rows]
        tokens, is_finite = [], []
        for row, status in zip(rows, statuses, strict=True):
            payload = payload_of(row.owner)
            tokens.append(token_of(payload.seed, row.output_index, row.loops_done))
            is_finite.append(payload.non_finite_at != row.output_index)
            if status is RowStatus.LEFT:
                self._finish_row(row, tokens[-1], is_finite[-1])
        return HeadResult(statuses, loops, tokens, [-float(i) for i in indices], is_finite)

    @staticmethod
    def _status(row: StubRow) -> RowStatus:
        if row.is_done:
            return RowStatus.MASKED
        if row.is_leaving:
            return RowStatus.LEFT
        return RowStatus.LEAVES_NEXT if row.is_exit_pending else RowStatus.STAYED

    def _finish_row(self, row: StubRow, token_id: int, is_finite: bool) -> None:
        request = row.owner
        if row.output_index > 0:
            for plane in range(row.loops_done, self.config.num_planes):
                cell = self._cell(request, plane, row.position)
                self._kv[cell] = self._kv[self._cell(request, row.loops_done - 1, row.position)]
        row.exit_depths.append(row.loops_done)
        row.output_index += 1
        row.loops_done, row.is_exit_pending, row.is_leaving = 0, False, False
        is_stop = token_id in stops_on_device(request)
        row.is_done = is_stop or not is_finite or row.output_index == request.max_tokens


class Driver:
    """Schedules, executes and applies, with up to `num_ahead` launches not applied yet."""

    def __init__(self, scheduler: Scheduler, executor: StubExecutor, num_ahead: int = 0) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.finished: list[Request] = []
        self.pending: deque[tuple[Batch, LaunchResult]] = deque()
        self._num_ahead = num_ahead

    def step(self, now: float = 0.0) -> Batch | None:
        """Dispatch one launch if anything can run; apply what is due. Returns the launch."""
        batch = self.scheduler.schedule(now)
        if batch is not None:
            self.pending.append((batch, self.executor.execute(batch)))
        elif not self.pending:
            return None
        if batch is None or len(self.pending) > self._num_ahead:
            self.apply_oldest()
        return batch

    def apply_oldest(self) -> StepUpdate:
        """Apply the oldest launch that is out."""
        update = self.scheduler.apply(*self.pending.popleft())
        self.finished += update.finished
        return update

    def drain(self, max_launches: int = 20_000) -> None:
        """Run until nothing is left."""
        while self.scheduler.has_unfinished_requests:
            before = self.executor.num_launches + len(self.finished)
            was_pending = len(self.pending)
            self.step()
            is_moving = self.executor.num_launches + len(self.finished) > before
            assert is_moving or len(self.pending) < was_pending, "nothing can run"
            assert self.executor.num_launches < max_launches


def stops_on_device(request: Request) -> list[int]:
    """Return the stop ids that the device knows."""
    return sorted(request.stop_token_ids)[:KNOWN_STOPS]


def ends_unseen(request: Request) -> bool:
    """Whether a request has ended by a stop id that only the host knows."""
    is_stop = request.finish_reason is FinishReason.STOP
    return is_stop and request.output_token_ids[-1] not in stops_on_device(request)


def payload_of(request: Request) -> StubPayload:
    """Return the stub's part of a request."""
    assert isinstance(request.payload, StubPayload)
    return request.payload


def content_of(request: Request, plane: int, position: int, version: int) -> object:
    """Name what must stand in a KV cell: prompt content by its tokens, the rest by its owner."""
    if position < request.num_prompt_tokens:
        return (plane, position, request.prompt_token_ids[: position + 1])
    return (request, position, version)


def signal_of(seed: int, output_index: int, loop: int) -> float:
    """Return the float32 signal in [0, 1] that is read after `loop`."""
    bits = zlib.crc32(f"signal/{seed}/{output_index}/{loop}".encode())
    return float(struct.unpack("f", struct.pack("f", bits / 2**32))[0])


def token_of(seed: int, output_index: int, exit_loop: int) -> int:
    """Return the token that is sampled after `exit_loop` loops."""
    return zlib.crc32(f"token/{seed}/{output_index}/{exit_loop}".encode()) % VOCAB_SIZE


def score_of(request: Request, position: int, loop: int) -> float:
    """Return the log-probability of a prompt token after `loop` loops."""
    return -zlib.crc32(f"{request.prompt_token_ids[: position + 1]}/{loop}".encode()) / 2**32


def check_invariants(scheduler: Scheduler) -> None:
    """Check what must hold between any two calls: blocks conserved, tables disjoint."""
    config, resources = scheduler.config, scheduler.resources
    assert scheduler.num_used_blocks + scheduler.num_free_blocks == config.num_blocks
    owners: dict[int, tuple[int, int, Request]] = {}
    for request in resources.active:
        lengths = {len(table) for table in request.block_tables}
        assert len(lengths) == 1, "planes must grow together"
        for plane, table in enumerate(request.block_tables):
            for index, block in enumerate(table):
                if block in owners:
                    assert owners[block][:2] == (plane, index), "shared at another place"
                    check_same_prefix(request, owners[block][2], (index + 1) * config.block_size)
                owners[block] = (plane, index, request)
    assert all(0 <= block < config.num_blocks for block in owners)
    assert len(owners) == scheduler.num_used_blocks
    for request in resources.active:
        check_prompt_items(scheduler, request)
    slots = [request.slot for request in resources.active]
    assert len(set(slots)) == len(slots) == resources.num_used_slots
    promised = sum(
        config.blocks_for(request.capacity) - config.num_planes * len(request.block_tables[0])
        for request in resources.active
    )
    assert resources.blocks.num_reserved_blocks == promised <= scheduler.num_free_blocks


def check_same_prefix(request: Request, other: Request, num_tokens: int) -> None:
    """Check that both prompts begin with the same tokens, so many."""
    prefix = request.prompt_token_ids[:num_tokens]
    assert len(prefix) == num_tokens
    assert other.prompt_token_ids[:num_tokens] == prefix, "shared without a prefix"


def check_prompt_items(scheduler: Scheduler, request: Request) -> None:
    """Check that prompt items follow each other, those before no less deep than those behind."""
    items = request.prompt_items
    assert not items or request.stage is Stage.PREFILL
    assert len(items) <= scheduler.config.max_window(scheduler.policy)
    ends = [request.num_prefilled_tokens, *(item.token_end for item in items)]
    assert [item.token_start for item in items] == ends[:-1]
    assert ends[-1] <= request.num_prompt_tokens
    assert all(before.depth >= behind.depth for before, behind in pairwise(items))


def check_drained(scheduler: Scheduler, executor: StubExecutor) -> None:
    """Check that nothing is held once everything has ended."""
    assert not scheduler.has_unfinished_requests
    assert scheduler.num_in_flight == 0
    assert scheduler.num_used_blocks == 0
    assert scheduler.resources.num_used_slots == 0
    assert not executor.outstanding
