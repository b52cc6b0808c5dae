"""A recorded log through the Scheduler again: does it come to the same launches, item by item?

What the log says happened to the scheduler (requests, aborts) happens to a new one between the same
launches, and each launch that was applied brings again what its line says: which rows stayed and
which left, stops, logits that were not finite. As in the engine, launches are handed out ahead of
those that are applied. What was still out when a log ends is not compared: it has no line.

The prompts' ids are not in a log; others take their place that share the same prefixes.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from looped.engine.events import (
    AbortEvent,
    EndEvent,
    EngineEvent,
    FaultEvent,
    LaunchEvent,
    LogEvent,
    RequestEvent,
)
from looped.engine.records import ItemRecord
from looped.errors import LoopedError
from looped.record.timeline import Name
from looped.sched import (
    Batch,
    ConfigError,
    FinishReason,
    HeadResult,
    InterfaceError,
    LaunchKind,
    LaunchResult,
    Policy,
    Request,
    RequestError,
    RowStatus,
    ScheduledItem,
    Scheduler,
    ScoreResult,
    SimulatedExecutor,
    StepUpdate,
)

from .loads.prompts import LoggedPrompts

STOP_ID = 1
"""Stands for whatever ended a request with reason `stop`."""
OTHER_ID = 0
"""Stands for every other token."""
OwnEvent = RequestEvent | AbortEvent | LaunchEvent | EndEvent | FaultEvent


@dataclass
class Replay:
    """What became of one engine's launches."""

    engine: EngineEvent
    num_launches: int = 0
    """Launches that came out the same."""
    difference: str | None = None
    """The first launch that did not, recorded and replayed; None if all did."""
    fault: FaultEvent | None = None
    """Where the recorded engine failed, and the replay ends."""


def replay(events: Iterable[LogEvent], *, policy: Policy | None = None) -> list[Replay]:
    """Replays the launches of every engine of a log.

    Args:
        events: of a whole log, from its start.
        policy: stands for that of the log, under any name; for one that is not installed.

    Raises:
        LoopedError: the log begins in the middle, this installation lacks its policy or options, or
            the log cannot tell how its policy was made and `policy` is None.
    """
    return [_EngineReplay(engine, own, policy).run() for engine, own in _by_engine(events).values()]


def _by_engine(events: Iterable[LogEvent]) -> dict[int, tuple[EngineEvent, list[OwnEvent]]]:
    engines: dict[int, tuple[EngineEvent, list[OwnEvent]]] = {}
    current: list[OwnEvent] | None = None
    for event in events:
        if isinstance(event, EngineEvent):
            if event.engine_index not in engines and event.launch_index > 0:
                raise LoopedError(
                    f"the log misses the first {event.launch_index} launches of engine "
                    f"{event.engine_index}; a replay needs all of them"
                )
            current = engines.setdefault(event.engine_index, (event, []))[1]
        elif current is None:
            raise LoopedError("expected the log to begin with an engine, got another line")
        else:
            current.append(event)
    return engines


@dataclass(frozen=True)
class _Out:
    """A launch that has been handed out."""

    batch: Batch
    slots: tuple[int, ...]
    """Of its items' requests, which may have others when it is applied."""


class _EngineReplay:
    """One engine's scheduler, told again what it was told."""

    def __init__(self, engine: EngineEvent, events: list[OwnEvent], policy: Policy | None) -> None:
        try:
            config = engine.scheduler_config(policy)
        except ConfigError as error:
            raise LoopedError(f"the log cannot be replayed here: {error}") from None
        ends = (i for i, event in enumerate(events) if isinstance(event, FaultEvent))
        self._events = events[: next(ends, len(events) - 1) + 1]
        self._scheduler = Scheduler(config, SimulatedExecutor())
        self._prompts = LoggedPrompts(config.vocab_size, config.block_size)
        self._samples: dict[Name, Request] = {}
        self._out: deque[_Out] = deque()
        self._launches = {
            event.record.index: event for event in self._events if isinstance(event, LaunchEvent)
        }
        self._now = 0.0
        self._ended: dict[tuple[FinishReason, int], set[Name]] = defaultdict(set)
        """Who ended for a reason, by the launch that brought the end."""
        for event in self._events:
            if isinstance(event, EndEvent):
                name = event.request_id, event.sample_index
                self._ended[event.reason, event.num_applied - 1].add(name)
        self._replay = Replay(engine)

    def run(self) -> Replay:
        """Replays up to the first difference, the first fault, or the end."""
        for event in self._events:
            if isinstance(event, RequestEvent | AbortEvent | LaunchEvent):
                self._hand_out(event.launch_index)
            if self._replay.difference is None:
                self._take_in(event)
            if self._replay.difference is not None:
                break
        return self._replay

    def _take_in(self, event: OwnEvent) -> None:
        match event:
            case RequestEvent():
                self._add(event)
            case AbortEvent():
                self._check_known((event.request_id, event.sample_index))
                self._scheduler.abort(event.request_id, event.sample_index)
            case LaunchEvent():
                self._apply(event)
            case FaultEvent():
                self._replay.fault = event

    def _add(self, event: RequestEvent) -> None:
        names = [(event.request_id, index) for index in range(event.num_earlier_samples)]
        self._check_known(*names)
        request = Request(
            request_id=event.request_id,
            sample_index=event.sample_index,
            earlier_samples=tuple(self._samples[name] for name in names),
            prompt_token_ids=self._prompts.token_ids(event),
            max_tokens=event.max_tokens,
            exit_rule=event.exit_rule,
            stop_token_ids=frozenset({STOP_ID}),
            priority=event.priority,
            scoring=event.scoring,
        )
        self._samples[_name(request)] = request
        try:
            self._scheduler.add(request)
        except RequestError as error:
            raise LoopedError(f"the log cannot be replayed here: {error}") from None

    def _hand_out(self, count: int) -> None:
        """Schedules until so many launches have been handed out, applied ones included."""
        while (index := self._replay.num_launches + len(self._out)) < count:
            event = self._launches.get(index)
            if event is not None:
                self._now = event.scheduled
            batch = self._scheduler.schedule(self._now)
            if batch is None:
                if event is not None:
                    self._check_items(event)
                    self._replay.difference = _describe(index, _recorded(event), None)
                return
            self._out.append(_Out(batch, tuple([item.request.slot for item in batch.items])))

    def _apply(self, event: LaunchEvent) -> None:
        self._check_items(event)
        index = event.record.index
        if not self._out:
            self._replay.difference = _describe(index, _recorded(event), None)
            return
        out = self._out.popleft()
        recorded, replayed = _recorded(event), _replayed(event, out)
        if replayed != recorded:
            self._replay.difference = _describe(index, recorded, replayed)
            return
        try:
            update = self._scheduler.apply(out.batch, self._result(event, out.batch))
        except InterfaceError as error:
            self._replay.difference = f"launch {index}: {error}"
            return
        self._replay.difference = _other_tokens(event, update)
        self._replay.num_launches += 1

    def _result(self, event: LaunchEvent, batch: Batch) -> LaunchResult:
        """What the launch brought, as its line and those of the ends that it brought tell it."""
        stopped = self._ended[FinishReason.STOP, event.record.index]
        failed = self._ended[FinishReason.ERROR, event.record.index]
        head = score = None
        if batch.head_items:
            statuses = _statuses(event, batch)
            requests = [item.request for item in batch.head_items]
            head = HeadResult(
                statuses=[statuses[item] or RowStatus.MASKED for item in batch.head_items],
                loops=[request.loops_done + 1 for request in requests],
                token_ids=[STOP_ID if _name(one) in stopped else OTHER_ID for one in requests],
                logprobs=[0.0] * len(requests),
                is_finite=[_name(one) not in failed for one in requests],
            )
        if batch.launch.brings_scores:
            count = batch.num_rows
            is_finite = _name(batch.items[0].request) not in failed
            score = ScoreResult([0.0] * count, [OTHER_ID] * count, is_finite)
        return LaunchResult(head, score)

    def _check_items(self, event: LaunchEvent) -> None:
        self._check_known(*((item.request_id, item.sample_index) for item in event.record.items))

    def _check_known(self, *names: Name) -> None:
        for request_id, sample_index in names:
            if (request_id, sample_index) not in self._samples:
                raise LoopedError(
                    f"the log misses the line of request {request_id!r}, sample {sample_index}; a "
                    "replay needs a log from its start, with nothing left out"
                )


_Facts = tuple[LaunchKind, int, tuple[ItemRecord, ...]]


def _recorded(event: LaunchEvent) -> _Facts:
    record = event.record
    return record.kind, record.num_passes, record.items


def _replayed(event: LaunchEvent, out: _Out) -> _Facts:
    batch = out.batch
    statuses = _statuses(event, batch)
    items = [
        ItemRecord.of(item, slot, statuses.get(item))
        for item, slot in zip(batch.items, out.slots, strict=True)
    ]
    passes = batch.num_passes if batch.launch.runs_layers else 0
    return batch.launch, passes, tuple(items)


def _statuses(event: LaunchEvent, batch: Batch) -> dict[ScheduledItem, RowStatus]:
    """What the recorded head said of each row that the replayed one looks at too.

    MASKED where it did not look, which it never says of a row that had not ended.
    """
    recorded = [one.status or RowStatus.MASKED for one in event.record.items]
    heads = set(batch.head_items)
    pairs = zip_longest(batch.items, recorded[: len(batch.items)], fillvalue=RowStatus.MASKED)
    return {item: status for item, status in pairs if item in heads}


def _other_tokens(event: LaunchEvent, update: StepUpdate) -> str | None:
    """What to say of tokens that a launch did not bring again; None if it brought all."""
    recorded = [
        (one.request_id, one.sample_index, one.output_index, one.exit_depth) for one in event.tokens
    ]
    replayed = [(*_name(one.request), one.output_index, one.exit_depth) for one in update.tokens]
    if recorded == replayed:
        return None
    return f"launch {event.record.index}: recorded tokens {recorded}, replayed {replayed}"


def _describe(index: int, recorded: _Facts, replayed: _Facts | None) -> str:
    if replayed is None:
        return f"launch {index}: recorded {recorded[0].name}, replayed nothing that can run"
    if recorded[:2] != replayed[:2]:
        return (
            f"launch {index}: recorded {recorded[0].name} of {recorded[1]} passes, replayed "
            f"{replayed[0].name} of {replayed[1]}"
        )
    for place, (ours, theirs) in enumerate(zip_longest(recorded[2], replayed[2])):
        if ours != theirs:
            return f"launch {index}, item {place}: recorded {ours}, replayed {theirs}"
    raise AssertionError("no difference")


def _name(request: Request) -> Name:
    return request.request_id, request.sample_index
