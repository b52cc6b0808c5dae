"""An executor without a model: it obeys every batch and checks that obeying is safe.

It stands where the runner stands in the engine. It keeps a shadow of device state that records
who wrote what: KV per (block, offset in block), hidden rows per slot and per prompt state. Every
row's context is checked before its results are made up, so a scheduler that mixes up blocks,
slots, depths or order fails here and not in a model's numbers. Signals and tokens depend only on
the request's seed, the output index and the loop: every policy must get the same ones.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise

from looped.sched import (
    NO_SLOT,
    Batch,
    CodaResult,
    ItemKind,
    LaunchKind,
    LaunchResult,
    PromptStateHandle,
    RecurrentResult,
    Request,
    ScheduledItem,
    Scheduler,
    SchedulerConfig,
    ScoreResult,
    Stage,
    StepUpdate,
)

VOCAB_SIZE = 50


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
        """Rows times passes, of each request; rows of the LM head are not counted."""
        self.last_launch: dict[Request, int] = {}
        """Number of the launch that a request was last part of."""
        self.outstanding: set[StubState] = set()
        self._kv: dict[tuple[int, int], object] = {}
        self._hidden: dict[int, object] = {}
        self._last_token: dict[int, object] = {}
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
        if batch.launch is LaunchKind.CODA:
            for item in batch.items:
                self._finish_row(item)
            return self._coda_result(batch)
        if batch.launch is LaunchKind.SCORE:
            (item,) = batch.items
            return self._score_result(item)
        self._check_prompt_order(batch)
        for pass_index in range(batch.num_passes):
            for item in batch.items:
                self._write_kv(item, item.depth + pass_index)
            # Attention comes after every write, as on the device.
            for item in batch.items:
                self._attend(item, item.depth + pass_index)
                self._advance_hidden(item, item.depth + pass_index)
        for item in batch.items:
            self.rows_run[item.request] += item.count * batch.num_passes
            if item.kind is ItemKind.PROMPT:
                for plane in range(item.depth, item.depth + batch.num_passes):
                    self._prompt_ends[item.request][plane] += item.count
        if not batch.is_read:
            return RecurrentResult(None)
        return RecurrentResult([self._signal(item) for item in batch.items[: batch.num_decode]])

    @staticmethod
    def _signal(item: ScheduledItem) -> float:
        if not item.is_deciding:
            return float("nan")  # poison: nobody may look at it
        seed = payload_of(item.request).seed
        return signal_of(seed, item.output_index, item.depth + 1)

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
            assert len({item.depth for item in batch.items}) == 1
        for item in batch.items:
            assert item.depth >= 0
            assert item.depth + batch.num_passes <= self.config.num_planes

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
            for plane in range(item.depth, item.depth + batch.num_passes):
                assert ends[plane] == item.first_position, f"plane {plane} is not written yet"

    def _cell(self, request: Request, plane: int, position: int) -> tuple[int, int]:
        block = request.block_tables[plane][position // self.config.block_size]
        return block, position % self.config.block_size

    def _write_kv(self, item: ScheduledItem, plane: int) -> None:
        for position in range(item.first_position, item.first_position + item.count):
            cell = self._cell(item.request, plane, position)
            self._kv[cell] = content_of(item.request, plane, position, version=plane)

    def _attend(self, item: ScheduledItem, plane: int) -> None:
        request = item.request
        for position in range(item.first_position + item.count):
            # The row that feeds output i stands behind the prompt and leads to output i + 1.
            index = position - request.num_prompt_tokens + 1
            version = plane
            if 1 <= index < len(request.exit_depths):
                version = min(plane, request.exit_depths[index] - 1)
            expected = content_of(request, plane, position, version)
            found = self._kv.get(self._cell(request, plane, position))
            assert found == expected, f"plane {plane}, position {position}: {found} != {expected}"

    def _advance_hidden(self, item: ScheduledItem, depth: int) -> None:
        request = item.request
        if item.kind is ItemKind.DECODE:
            index = item.output_index
            if depth == 0:
                assert self._last_token[request.slot] == (request, index - 1)
            else:
                assert self._hidden[request.slot] == (request, index, depth)
            self._hidden[request.slot] = (request, index, depth + 1)
            return
        assert item.prompt_item is not None
        state = item.prompt_item.state
        assert isinstance(state, StubState)
        assert state.owner is request
        assert not state.is_released
        rows = (item.first_position, item.count)
        assert state.content == (None if depth == 0 else (*rows, depth))
        assert item.prompt_item.embedded == (item.depth > 0)
        state.content = (*rows, depth + 1)
        is_last = depth == self.config.num_planes - 1
        if is_last and item.first_position + item.count == request.num_prompt_tokens:
            self._hidden[request.slot] = (request, 0, self.config.num_planes)

    def _score_result(self, item: ScheduledItem) -> ScoreResult:
        request, work = item.request, item.prompt_item
        assert work is not None
        assert isinstance(work.state, StubState)
        assert not work.state.is_released
        assert work.state.content == (work.token_start, work.token_count, item.depth + 1)
        assert item.count > 0
        targets = range(item.first_position + 1, item.first_position + item.count + 1)
        assert targets.stop <= request.num_prompt_tokens
        return ScoreResult(
            logprobs=[score_of(request, position, item.depth + 1) for position in targets],
            best_token_ids=[position % VOCAB_SIZE for position in targets],
            is_finite=payload_of(request).non_finite_at != -1,
        )

    def _finish_row(self, item: ScheduledItem) -> None:
        request = item.request
        assert self._hidden[request.slot] == (request, item.output_index, item.exit_loop)
        for plane in range(item.exit_loop, self.config.num_planes):
            cell = self._cell(request, plane, item.first_position)
            source = self._cell(request, item.exit_loop - 1, item.first_position)
            self._kv[cell] = self._kv[source]
        self._last_token[request.slot] = (request, item.output_index)

    def _coda_result(self, batch: Batch) -> CodaResult:
        payloads = [payload_of(item.request) for item in batch.items]
        return CodaResult(
            token_ids=[
                token_of(payload.seed, item.output_index, item.exit_loop)
                for payload, item in zip(payloads, batch.items, strict=True)
            ],
            logprobs=[-float(item.output_index) for item in batch.items],
            is_finite=[
                payload.non_finite_at != item.output_index
                for payload, item in zip(payloads, batch.items, strict=True)
            ],
        )


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
