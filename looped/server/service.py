"""The event loop's side of the engine: who waits for what, how much is taken on, and until when."""

import asyncio
import logging
import time
from collections.abc import Sequence
from enum import StrEnum

from looped.engine.generation_request import GenerationRequest
from looped.engine.outputs import Completion, StepOutput
from looped.engine.records import EngineStats, LaunchRecord
from looped.llm import LLM
from looped.sampling_params import SamplingParams
from looped.text.text_outputs import TextOutputs

from .config import ServerConfig
from .engine_thread import (
    AbortRequest,
    EngineState,
    EngineThread,
    Report,
    StateReport,
)
from .errors import ApiError
from .generation import Generation
from .metrics import Metrics
from .recent_launches import RecentLaunches

logger = logging.getLogger(__name__)

SECONDS_TO_SAY_GOODBYE = 2.0
"""After the drain timeout: for the error events of the requests that it ends."""
SECONDS_TO_JOIN = 1.0
"""After the last request: for the launch under way to end."""
SECONDS_BETWEEN_LOOKS = 0.02


class ServiceState(StrEnum):
    """What the server as a whole can do."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """Requests under way, and the thread that serves them. For use on one event loop.

    Args:
        llm: a model with a tokenizer; its engine belongs to the service from `start` on.
        config: limits.
        metrics: what is counted.
    """

    def __init__(self, llm: LLM, config: ServerConfig, metrics: Metrics) -> None:
        assert llm.tokenizer is not None
        self.config = config
        self.tokenizer = llm.tokenizer
        self.launches = RecentLaunches()
        self.stats = EngineStats(num_blocks=llm.engine.stats().num_blocks)
        """The engine's newest totals; what it compiled before it came here is in the first."""
        self.failure = ""
        """Why the engine is lost; empty while it is not."""
        self._engine_state = EngineState.WARMING_UP
        self._is_draining = False
        self._is_hurried = False
        self._metrics = metrics
        self._owners: dict[str, Generation] = {}
        """Open requests by the engine's ids."""
        self._num_choices = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._texts = TextOutputs(
            llm.tokenizer, self._stop_sample, vocab_size=llm.engine.model_config.vocab_size
        )
        self._thread = EngineThread(llm.engine, self._post, restarts=config.restart_engine)

    @property
    def state(self) -> ServiceState:
        """Ready is the only one in which requests are taken."""
        if self._engine_state is EngineState.FAILED:
            return ServiceState.FAILED
        if self._is_draining:
            return ServiceState.DRAINING
        if self._engine_state is EngineState.WARMING_UP:
            return ServiceState.STARTING
        return ServiceState.READY

    @property
    def num_choices(self) -> int:
        """Samples of all open requests."""
        return self._num_choices

    def now(self) -> float:
        """The clock of everything that is timed here, in seconds."""
        return asyncio.get_running_loop().time()

    def start(self) -> None:
        """Starts the engine's thread; called on the event loop that reports go to."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Ends the thread after the launch under way; what is outstanding gets an error.

        Waits for it for a moment, in which a launch ends, though not a compilation.
        """
        self._fail_all(ApiError(503, "the server has stopped"))
        self._thread.stop()
        deadline = self.now() + SECONDS_TO_JOIN
        while self._thread.is_alive and self.now() < deadline and not self._is_hurried:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        if self._thread.is_alive:
            is_compiling = self._engine_state is EngineState.WARMING_UP
            work = "compiling" if is_compiling else "in a launch"
            logger.warning("the engine is still %s; leaving without it", work)

    def hurry(self) -> None:
        """Lets `stop` wait for nothing; safe from a signal's handler."""
        self._is_hurried = True

    @property
    def has_thread(self) -> bool:
        """Whether the engine's thread is there, at work maybe."""
        return self._thread.is_alive

    async def drain(self) -> None:
        """Takes no more requests, and returns when the last one is over or its time is."""
        self._is_draining = True
        logger.info("draining: %d samples under way", self._num_choices)
        if await self._idle_within(self.config.drain_timeout):
            return
        seconds = f"{self.config.drain_timeout:g}"
        self._fail_all(
            ApiError(503, f"the server is stopping, and the request took over {seconds} seconds")
        )
        await self._idle_within(SECONDS_TO_SAY_GOODBYE)

    def open(self, name: str, *, num_prompts: int, num_samples: int) -> Generation:
        """Takes on an HTTP request; `close` of what it returns must be called.

        Raises:
            ApiError: not now (429, 503), or never (400).
        """
        self._check_ready()
        num_choices, limit = num_prompts * num_samples, self.config.max_concurrent_requests
        if num_choices > limit:
            raise ApiError(
                400,
                f"prompts times n must be at most {limit} (--max-concurrent-requests), got "
                f"{num_prompts} x {num_samples}",
                param="n" if num_samples > limit else "prompt",
            )
        if self._num_choices + num_choices > limit:
            raise ApiError(
                429,
                f"{self._num_choices} samples are under way, and {num_choices} more would be above "
                f"{limit} (--max-concurrent-requests); try again",
                code="server_overloaded",
            )
        loop = asyncio.get_running_loop()
        generation = Generation(
            name,
            num_prompts=num_prompts,
            num_samples=num_samples,
            deadline=loop.time() + self.config.request_timeout,
            send=self._thread.send,
            on_close=self._close,
        )
        self._num_choices += num_choices
        self._owners |= dict.fromkeys(generation.engine_ids, generation)
        self._is_idle.clear()
        return generation

    def _check_ready(self) -> None:
        """ApiError (503) unless requests are taken."""
        match self.state:
            case ServiceState.STARTING:
                raise ApiError(503, "the server is warming up; try again", code="starting")
            case ServiceState.DRAINING:
                raise ApiError(503, "the server is stopping", code="draining")
            case ServiceState.FAILED:
                raise ApiError(503, f"the engine is lost: {self.failure}", code="engine_failed")

    async def submit(
        self,
        generation: Generation,
        prompts: Sequence[tuple[int, ...]],
        params: Sequence[SamplingParams],
    ) -> None:
        """Gives an open request's prompts to the engine, each with its options; errors as of
        `Generation.submit`."""
        requests = [
            GenerationRequest(
                prompt_token_ids=prompt, params=self._texts.register(engine_id, options)
            )
            for engine_id, prompt, options in zip(
                generation.engine_ids, prompts, params, strict=True
            )
        ]
        await generation.submit(requests)

    def deliver(self, report: Report) -> None:
        """Takes a report of the engine's thread, on the event loop."""
        if isinstance(report, StateReport):
            return self._change_state(report)
        assert self._loop is not None
        now = self._loop.time()
        self._metrics.count_step(report, self.stats)
        self.stats = report.stats
        records = [launch.record for launch in report.launches]
        self.launches.add(records, num_tokens=len(report.output.tokens), now=now)
        for launch in report.launches:
            self._count_first_launches(launch.record, now - (time.monotonic() - launch.scheduled))
        output = self._texts.add(self._of_open_requests(report.output))
        for event in output.tokens:
            owner = self._owners[event.request_id]
            choice = owner.choice_index(event)
            self._metrics.count_token(
                event, seen=now, previous=owner.last_token.get(choice), opened=owner.opened
            )
            owner.last_token[choice] = now
            owner.put(event)
        for completion in output.completions:
            owner = self._owners[completion.request_id]
            self._metrics.count_completion(completion, seconds=now - owner.opened)
            owner.put(completion)
        return None

    def _count_first_launches(self, record: LaunchRecord, scheduled: float) -> None:
        """Who has come out of the queue, at a moment on the event loop's clock."""
        for item in record.items:
            owner = self._owners.get(item.request_id)
            if owner is None:
                continue
            choice = owner.choice_index(item)
            if choice not in owner.launched:
                owner.launched.add(choice)
                self._metrics.count_first_launch(max(0.0, scheduled - owner.opened))

    def _change_state(self, report: StateReport) -> None:
        self._engine_state = report.state
        if report.state is EngineState.FAILED:
            self.failure = report.reason
            self._fail_all(ApiError(503, f"the engine is lost: {report.reason}"))
            # Of a new engine on the same executables, if there will be one; nothing runs till then.
            self.stats = EngineStats(
                num_blocks=self.stats.num_blocks, num_compilations=self.stats.num_compilations
            )
            self._metrics.set_load(self.stats)
        elif report.is_restarted:
            self.failure = ""
            self._metrics.num_restarts.inc()

    def _post(self, report: Report) -> None:
        """Called in the engine's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self.deliver, report)
        except RuntimeError:  # the loop is closed: the server has left without the engine
            logger.debug("a report came after the end: %s", report)

    def _stop_sample(self, request_id: str, sample_index: int) -> tuple[Completion, ...]:
        """A stop string was found: the engine is told, and its completion comes by `deliver`."""
        self._thread.send(AbortRequest(request_id, sample_index))
        return ()

    def _of_open_requests(self, output: StepOutput) -> StepOutput:
        """Without what is left over of requests that nobody waits for."""
        return StepOutput(
            tokens=[event for event in output.tokens if event.request_id in self._owners],
            completions=[done for done in output.completions if done.request_id in self._owners],
        )

    def _close(self, generation: Generation) -> None:
        for name in generation.engine_ids:
            del self._owners[name]
            self._texts.withdraw(name)  # names are never used again
        self._num_choices -= generation.num_choices
        if not self._owners:
            self._is_idle.set()

    def _fail_all(self, error: ApiError) -> None:
        for generation in set(self._owners.values()):
            generation.fail(error)

    async def _idle_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()
        except TimeoutError:
            return False
        return True
