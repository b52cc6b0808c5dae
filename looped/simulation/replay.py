"""A recorded log through the Scheduler again: does it come to the same launches, item by item?

What the log says happened to the scheduler (requests, aborts) happens to a new one at the same
launches, and what launches brought (depths, stops, logits that were not finite) they bring again.
The prompts' ids are not in a log; others take their place that share the same prefixes.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from math import inf

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
    CodaResult,
    ConfigError,
    FinishReason,
    LaunchKind,
    LaunchResult,
    Policy,
    Request,
    RequestError,
    Scheduler,
    ScoreResult,
    SimulatedExecutor,
)

from .fates import STOP_ID, OwnEvent, fates_of, missing_request
from .loads.prompts import LoggedPrompts


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
    num_unknown: int = 0
    """Launches at the end of a cut log, or before a fault, that were not compared: what they carry
    depends on exits that nothing after them tells."""


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


class _ReplayExecutor(SimulatedExecutor):
    """Makes logits bad again where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.bad_names: frozenset[Name] = frozenset()

    def execute(self, batch: Batch) -> LaunchResult:
        result = super().execute(batch)
        is_finite = [_name(item.request) not in self.bad_names for item in batch.items]
        if isinstance(result, CodaResult):
            return CodaResult(result.token_ids, result.logprobs, is_finite)
        if isinstance(result, ScoreResult):
            return ScoreResult(result.logprobs, result.best_token_ids, all(is_finite))
        return result


class _EngineReplay:
    """One engine's scheduler, told again what it was told."""

    def __init__(self, engine: EngineEvent, events: list[OwnEvent], policy: Policy | None) -> None:
        try:
            config = engine.scheduler_config(policy)
        except ConfigError as error:
            raise LoopedError(f"the log cannot be replayed here: {error}") from None
        ends = (i for i, event in enumerate(events) if isinstance(event, FaultEvent))
        self._events = events[: next(ends, len(events) - 1) + 1]
        events = [event for event in self._events if not isinstance(event, FaultEvent)]
        self._executor = _ReplayExecutor()
        self._scheduler = Scheduler(config, self._executor)
        self._prompts = LoggedPrompts(config.vocab_size, config.block_size)
        fates = fates_of(events)
        self._fates = iter(fates)
        self._unknown_from = min((fate.unknown_from for fate in fates), default=inf)
        self._samples: dict[Name, Request] = {}
        self._bad_names: dict[int, set[Name]] = defaultdict(set)
        self._late_aborts: list[AbortEvent] = []
        for event in events:
            if isinstance(event, EndEvent) and event.reason is FinishReason.ERROR:
                self._bad_names[event.launch_index - 1].add((event.request_id, event.sample_index))
        self._replay = Replay(engine)

    def run(self) -> Replay:
        """Replays up to the first difference, the first fault, or the end."""
        for event in self._events:
            if self._replay.num_unknown and not isinstance(event, LaunchEvent | FaultEvent):
                continue
            match event:
                case RequestEvent():
                    self._add(event)
                case AbortEvent(is_in_flight=True):
                    self._late_aborts.append(event)
                case AbortEvent():
                    self._scheduler.abort(event.request_id, event.sample_index)
                case LaunchEvent():
                    self._launch(event)
                case FaultEvent():
                    self._replay.fault = event
            if self._replay.difference is not None or self._replay.fault is not None:
                break
        return self._replay

    def _add(self, event: RequestEvent) -> None:
        names = [(event.request_id, index) for index in range(event.num_earlier_samples)]
        missing = [name for name in names if name not in self._samples]
        if missing:
            raise missing_request(missing[0])
        earlier = tuple(self._samples[name] for name in names)
        request = Request(
            request_id=event.request_id,
            sample_index=event.sample_index,
            earlier_samples=earlier,
            prompt_token_ids=self._prompts.token_ids(event),
            max_tokens=event.max_tokens,
            exit_rule=event.exit_rule,
            stop_token_ids=frozenset({STOP_ID}),
            priority=event.priority,
            scoring=event.scoring,
            payload=next(self._fates).output(),
        )
        self._samples[_name(request)] = request
        try:
            self._scheduler.add(request)
        except RequestError as error:
            raise LoopedError(f"the log cannot be replayed here: {error}") from None

    def _launch(self, event: LaunchEvent) -> None:
        record = event.record
        if record.index >= self._unknown_from:
            self._replay.num_unknown += 1
            return
        batch = self._scheduler.schedule(event.scheduled)
        for abort in self._late_aborts:
            self._scheduler.abort(abort.request_id, abort.sample_index)
        self._late_aborts.clear()
        recorded = (record.kind, record.num_passes, record.items)
        replayed = None
        if batch is not None:
            items = tuple(ItemRecord.of(item, item.request.slot) for item in batch.items)
            passes = batch.num_passes if batch.launch.runs_layers else 0
            replayed = (batch.launch, passes, items)
        if batch is None or replayed != recorded:
            self._replay.difference = _describe(record.index, recorded, replayed)
            return
        self._executor.bad_names = frozenset(self._bad_names.get(record.index, ()))
        self._scheduler.apply(batch, self._executor.execute(batch))
        self._replay.num_launches += 1


_Facts = tuple[LaunchKind, int, tuple[ItemRecord, ...]]


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
