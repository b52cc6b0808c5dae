"""The engine in a thread of its own: the only place that touches it once the server runs.

Commands go in through a queue that any thread may write to, and reports come out through one
callable, in the order in which things happened. The loop below is all there is:

    carry out what was commanded; make one step if anything is unfinished; report; repeat
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from queue import Empty, SimpleQueue

from looped.engine.generation_request import GenerationRequest
from looped.engine.llm_engine import LLMEngine
from looped.engine.outputs import Completion, StepOutput
from looped.engine.records import EngineStats, LaunchRecord
from looped.errors import LoopedError

logger = logging.getLogger(__name__)


class EngineState(StrEnum):
    """What can be expected of the engine."""

    WARMING_UP = "warming up"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AppliedLaunch:
    """A launch whose tokens have come."""

    record: LaunchRecord
    scheduled: float
    """When the round began in which it went out, in seconds of `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one round of the loop brought."""

    output: StepOutput
    launches: tuple[AppliedLaunch, ...]
    """Those that were applied in it."""
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class StateReport:
    """The engine's state has changed. With FAILED, every request it had is lost."""

    state: EngineState
    reason: str = ""
    """What happened, with FAILED."""
    is_restarted: bool = False
    """With READY: whether the engine is a new one, whose counters begin at 0."""


Report = StepReport | StateReport


@dataclass(frozen=True, slots=True)
class AddRequests:
    """Queue the prompts of an HTTP request; `added` is done when the engine has all, or none."""

    requests: Mapping[str, GenerationRequest]
    """By their ids."""
    added: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """End a request, or one of its samples; nothing happens if it has ended."""

    request_id: str
    sample_index: int | None = None


class Stop:
    """Leave the loop; wakes it, if it waits for commands."""


Command = AddRequests | AbortRequest | Stop


class EngineThread:
    """Runs an engine until it is told to stop.

    Args:
        engine: not warmed up yet; belongs to the thread from `start` on.
        post: takes reports, in the engine's thread; must not block.
        restarts: build another engine, once, when this one dies.
    """

    def __init__(
        self, engine: LLMEngine, post: Callable[[Report], None], *, restarts: bool = False
    ) -> None:
        self._engine: LLMEngine | None = engine
        self._post = post
        self._can_restart = restarts
        self._reason = ""
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._num_applied = 0
        self._scheduled: deque[float] = deque()
        """When the rounds began in which the launches went out that still are."""
        self._is_stopping = threading.Event()
        # A daemon, so that a compilation that nobody waits for any more cannot hold the process.
        self._thread = threading.Thread(target=self._run, name="looped-engine", daemon=True)

    def start(self) -> None:
        """Begins with the warm-up; READY or FAILED is reported after it."""
        self._thread.start()

    def send(self, command: Command) -> None:
        """Queues a command; safe from any thread, and at once."""
        self._commands.put(command)

    def stop(self) -> None:
        """Ends the thread after the launch or the compilation under way; what is left unfinished is
        not answered. Waits for nothing."""
        self._is_stopping.set()
        self._commands.put(Stop())

    @property
    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._warm_up()
            while self._round():
                pass
        except BaseException as error:
            # Not the engine's: this loop's own. Nobody can answer any more.
            logger.critical("the engine's thread has ended", exc_info=error)
            self._engine = None
            self._post(StateReport(EngineState.FAILED, f"the engine's thread has ended: {error!r}"))

    def _warm_up(self) -> None:
        assert self._engine is not None
        try:
            self._engine.warm_up(should_stop=self._is_stopping.is_set)
        except BaseException as error:
            return self._die("the warm-up failed", error)
        if not self._is_stopping.is_set():
            self._post(StepReport(StepOutput(), (), self._engine.stats()))
            self._post(StateReport(EngineState.READY))
        return None

    def _round(self) -> bool:
        """Commands, a step, a report; returns whether to go on."""
        is_busy = self._engine is not None and self._engine.has_unfinished_requests()
        aborts: list[AbortRequest] = []
        for command in self._take_commands(waits=not is_busy):
            if isinstance(command, Stop):
                return False
            if isinstance(command, AddRequests):
                self._add(command)
            else:
                aborts.append(command)
        if self._engine is not None:
            self._step(self._engine, aborts)
        return True

    def _take_commands(self, *, waits: bool) -> list[Command]:
        """All commands that have come; waits for one if there is nothing else to do."""
        commands = [self._commands.get()] if waits else []
        while True:
            try:
                commands.append(self._commands.get_nowait())
            except Empty:
                return commands

    def _add(self, command: AddRequests) -> None:
        if self._engine is None:
            return settle(command.added, LoopedError(self._reason))
        try:
            self._engine.add_requests(command.requests)
        except Exception as error:  # it concerns this HTTP request alone
            return settle(command.added, error)
        return settle(command.added, None)

    def _step(self, engine: LLMEngine, aborts: list[AbortRequest]) -> None:
        ended: list[Completion] = []
        scheduled = time.monotonic()
        try:
            for abort in aborts:
                ended += engine.abort(abort.request_id, abort.sample_index)
            output = engine.step()
        except BaseException as error:
            return self._die("the engine failed", error)
        if ended:
            output = StepOutput(tokens=output.tokens, completions=ended + output.completions)
        self._post(StepReport(output, self._applied(engine, scheduled), engine.stats()))
        if engine.is_broken:
            self._die("the engine lost its device state", None)
        return None

    def _applied(self, engine: LLMEngine, scheduled: float) -> tuple[AppliedLaunch, ...]:
        """The launches that a round, which began at `scheduled`, has applied."""
        newest_first = takewhile(
            lambda record: record.index >= self._num_applied, reversed(engine.runner.records)
        )
        records = [*newest_first][::-1]
        num_out = engine.scheduler.num_in_flight
        if len(records) + num_out > len(self._scheduled):
            self._scheduled.append(scheduled)
        launches = tuple([AppliedLaunch(one, self._scheduled.popleft()) for one in records])
        if records:
            self._num_applied = records[-1].index + 1
        if not num_out:  # what was out may be lost
            self._scheduled.clear()
        return launches

    def _die(self, what: str, error: BaseException | None) -> None:
        """The engine is lost, and all that it was to do; another one follows if that is wanted."""
        logger.critical("%s", what, exc_info=error)
        self._reason = what if error is None else f"{what}: {error!r}"
        old, self._engine = self._engine, None
        # Requests that nobody has looked at yet are lost as well: who waits for them is told below.
        for command in self._take_commands(waits=False):
            if isinstance(command, AddRequests):
                self._add(command)
            elif isinstance(command, Stop):
                self._commands.put(command)
        self._post(StateReport(EngineState.FAILED, self._reason))
        if self._can_restart and old is not None:
            self._can_restart = False
            self._restart(old)

    def _restart(self, old: LLMEngine) -> None:
        try:
            engine = old.rebuilt()
            engine.warm_up(should_stop=self._is_stopping.is_set)
        except BaseException as error:
            return self._die("the restart of the engine failed", error)
        logger.warning("the engine was built anew")
        self._engine = engine
        self._num_applied = 0
        self._scheduled.clear()
        self._post(StateReport(EngineState.READY, is_restarted=True))
        return None


def settle(future: Future[None], error: Exception | None) -> None:
    """Ends a future that another thread may have ended or cancelled, also this very moment."""
    try:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    except InvalidStateError:
        pass
