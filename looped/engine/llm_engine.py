"""The engine: schedule, pack, launch, and `run_ahead` launches later collect and apply."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from looped.errors import LoopedError, UsageError
from looped.loading import LoadedModel
from looped.process.jax_options import with_own_jax_options
from looped.programs.executables import Executables
from looped.programs.lookahead import LookaheadHeads, check_lookahead
from looped.programs.parameters import Parameters
from looped.sampling_params import SamplingParams
from looped.sched import (
    Batch,
    Request,
    RequestError,
    Scheduler,
    StepUpdate,
    all_rungs,
    ladders_for,
    reachable_rungs,
)

from .full_depth import check_full_depth
from .generation_request import GenerationRequest
from .memory_plan import MemoryPlan
from .observer import LaunchObserver, Moment
from .options import EngineConfig
from .outputs import Completion, StepOutput, TokenEvent
from .records import EngineStats
from .requests import build_requests
from .runner import Launched, PackedLaunch, Runner
from .sizes import choose_backend, log_derived, plan_scheduler, plan_shape

logger = logging.getLogger(__name__)


class LLMEngine:
    """Serves requests on one model, one launch a step.

    The device is given launch n before the record of launch n - run_ahead is waited for.

    Args:
        loaded: model and configuration.
        config: options.
        eos_token_ids: ids that end a request unless it ignores them.
        executables: compiled steps to share with another engine of the same shape.
        observer: is told of every launch; None tells nobody.

    Raises:
        UsageError: options that contradict each other, with the numbers.
        LoopedError: no memory for a useful KV pool.
    """

    @with_own_jax_options
    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig | None = None,
        *,
        eos_token_ids: Iterable[int] = (),
        executables: Executables | None = None,
        observer: LaunchObserver | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self._observer = observer or LaunchObserver()
        self.model_config = loaded.config
        self.loaded = loaded
        """The model and the configuration it runs with."""
        self._eos_token_ids = frozenset(eos_token_ids)
        if self.config.layers not in (None, loaded.layers):
            raise UsageError(
                f"layers {self.config.layers} was asked for, but the model was loaded "
                f"{loaded.layers}; load it with load_folder(..., layers={self.config.layers!r})"
            )
        self._exit_defaults = self.config.exit_defaults(loaded.config)
        check_lookahead(self.config.exit_mode, loaded.lookahead_gate, loaded.config.num_loops)
        parameters = Parameters(
            model=loaded.model,
            lookahead=LookaheadHeads.create(
                loaded.config, seed=self.config.lookahead_seed, gate=loaded.lookahead_gate
            ),
        )
        backend = choose_backend(self.config)
        if backend.startswith("pallas") and jax.default_backend() == "cpu":
            logger.warning(
                "attention backend %s runs in the Pallas interpreter on a CPU: for tests, slow",
                backend,
            )
        shape = plan_shape(loaded, self.config, parameters, backend)
        self.scheduler_config = plan_scheduler(self.config, shape)
        log_derived(self.scheduler_config)
        self._ladders = ladders_for(
            self.scheduler_config, is_deterministic=self.config.deterministic
        )
        if executables is None:
            executables = Executables(
                shape, parameters, backend=backend, is_deterministic=self.config.deterministic
            )
        else:
            compiled = executables.shape, executables.backend, executables.layers
            needed = shape, backend, loaded.layers
            if compiled != needed:
                raise UsageError(
                    f"shared executables were compiled for {compiled}, this engine needs {needed}"
                )
        self.runner = Runner(
            parameters, executables, self._ladders, records_gates=self._observer.records_gates
        )
        self.scheduler = Scheduler(self.scheduler_config, self.runner.prompt_pool)
        self.is_broken = False
        """Whether the device state is lost for good; such an engine takes no more requests."""
        self._parameters = parameters
        self._told_plan: MemoryPlan | None = None
        self._num_ahead = self.scheduler_config.launches_ahead(self.scheduler.policy)
        self._unread: deque[Launched] = deque()
        """Launches that are out, the oldest first."""
        self._unfinished: dict[str, dict[int, Request]] = {}
        """Samples that have not ended, by request id and sample index."""
        self._stats = EngineStats(num_blocks=shape.num_blocks)
        self._observer.built(
            self.scheduler,
            self._ladders,
            is_deterministic=self.config.deterministic,
            records_gates=self._observer.records_gates,
        )

    def rebuilt(self) -> "LLMEngine":
        """A new engine of the same sizes on the same executables, which compiles nothing.

        For use when this one is broken or has raised: its requests are gone, and its device state
        is freed first, so it must not be used any more.

        Raises:
            Exception: what the platform raises when no device state can be had.
        """
        self.is_broken = True
        self.runner.delete_state()
        return self.with_options()

    def with_options(self, **changes: Any) -> "LLMEngine":
        """An engine of its own state on the same weights and executables, which share their steps.

        Args:
            changes: options of `EngineConfig` that differ, such as the policy; none that changes a
                size, since steps are compiled for those.

        Raises:
            UsageError: options that contradict each other, or that need other steps.
        """
        shape = self.runner.executables.shape
        # Sizes are given, so that nothing is measured or compiled to find them a second time.
        sizes = {
            "num_blocks": shape.num_blocks,
            "kv_cache_bytes": None,
            "max_model_len": shape.max_model_len,
        }
        return LLMEngine(
            self.loaded,
            replace(self.config, **{**sizes, **changes}),
            eos_token_ids=self._eos_token_ids,
            executables=self.runner.executables,
            observer=self._observer,
        )

    @with_own_jax_options
    def warm_up(
        self,
        prompt_lengths: list[int] | None = None,
        *,
        has_scores: bool = True,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Compiles ahead, so that no request causes a compilation; logs a new memory plan.

        Args:
            prompt_lengths: of all requests that will come, once per sample, if they are known:
                only what these can reach is compiled. None compiles every rung.
            has_scores: whether any of those asks for prompt log-probabilities.
            should_stop: asked before each compilation, which takes seconds; no more follow then.
        """
        rungs = (
            all_rungs(self._ladders)
            if prompt_lengths is None
            else reachable_rungs(
                self._ladders, self.scheduler_config, prompt_lengths, has_scores=has_scores
            )
        )
        self.runner.executables.prepare(rungs, should_stop=should_stop)
        plan = self.memory_plan
        if plan != self._told_plan:
            self._told_plan = plan
            logger.info("%s", plan)

    @property
    def memory_plan(self) -> MemoryPlan:
        """Where memory goes; the workspace is that of the steps compiled so far."""
        executables = self.runner.executables
        return MemoryPlan(
            weights=sum(leaf.nbytes for leaf in jax.tree.leaves(self._parameters)),
            kv_pool=executables.shape.kv_bytes,
            prompt_state=executables.shape.prompt_state_bytes,
            sampling_state=executables.shape.sampling_state_bytes,
            request_table=executables.shape.request_table_bytes,
            workspace=executables.workspace_bytes,
        )

    def add_request(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        """Queues a request; errors as of `add_requests`."""
        prompt = tuple(prompt_token_ids)
        self.add_requests({request_id: GenerationRequest(prompt_token_ids=prompt, params=params)})

    def add_requests(self, requests: Mapping[str, GenerationRequest]) -> None:
        """Queues requests, by their ids: all of them, or none, and the observer hears as much.

        Raises:
            UsageError: one could never run (too long, empty, ids outside the vocabulary, an id in
                use, conflicting exit options); nothing has changed.
        """
        samples = [
            sample
            for request_id, request in requests.items()
            for sample in self._built(request_id, request)
        ]
        try:
            self.scheduler.add(*samples)
        except RequestError as error:
            raise UsageError(str(error)) from None
        for sample in samples:
            self._unfinished.setdefault(sample.request_id, {})[sample.sample_index] = sample
            self._observer.added(sample, self.scheduler)

    def limited(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """The options with the max_tokens that `add_request` gives them if they have none."""
        return params.limited(self.scheduler_config.room_after(num_prompt_tokens))

    def abort(self, request_id: str, sample_index: int | None = None) -> list[Completion]:
        """Ends a request, or one of its samples; safe at any moment.

        Its id may be used again at once, when no sample is left.

        Returns:
            Completions of the samples, in order; none for an unknown request. What launches that
            are out bring for them is dropped.
        """
        samples = [
            request
            for index, request in self._unfinished.get(request_id, {}).items()
            if sample_index in (None, index)
        ]
        for request in samples:
            self._forget(request)
            self._observer.aborting(request, self.scheduler)
        ended = [self.scheduler.abort(request_id, request.sample_index) for request in samples]
        return self._completed([request for request in ended if request is not None]).completions

    def has_unfinished_requests(self) -> bool:
        """Whether another step may bring something."""
        return self.scheduler.has_unfinished_requests

    @with_own_jax_options
    def step(self) -> StepOutput:
        """Hands out one launch, then applies those older than run_ahead, or, where nothing can be
        handed out, the oldest; an empty output if nothing is out.

        A launch that fails before the device has it ends its own requests with an error, after
        those before it are applied. One that fails later has lost the donated state: every active
        request ends with an error, and waiting requests go on with a fresh state. An interrupt
        leaves the engine usable, too: its active requests end, and the exception goes on.
        If no fresh state can be built, waiting requests end as well and the engine `is_broken`.
        """
        now = self._observer.mark(Moment.SCHEDULING)
        batch, output = None, StepOutput()
        try:
            batch = self.scheduler.schedule(now)
            if batch is not None:
                self._hand_out(batch, output)
            elif self._unread:
                self._apply_oldest(output)
            while len(self._unread) > self._num_ahead:
                self._apply_oldest(output)
        except BaseException as error:  # an interrupt, or a fault of ours or of the policy
            if isinstance(error, Exception):
                # Where there is no batch it is a policy's most often, which the message names.
                name, has_batch = type(error).__name__, batch is not None
                logger.error("a step failed with %s", name, exc_info=has_batch)
            self._reset(error)
            raise
        return output

    @with_own_jax_options
    def settle(self) -> StepOutput:
        """Applies every launch that is out, and hands out no other: after the last abort."""
        output = StepOutput()
        while self._unread:
            self._apply_oldest(output)
        return output

    def _built(self, request_id: str, request: GenerationRequest) -> list[Request]:
        """The samples of a request; UsageError for what the engine's options refuse."""
        if self.is_broken:
            raise LoopedError("this engine has lost its device state; make another one")
        if request_id in self._unfinished:
            raise UsageError(
                f"request {request_id!r}: expected an id of its own, got one of an unfinished "
                "request"
            )
        params, policy = request.params, self.scheduler.policy
        if params.prompt_logprobs_every_loop and policy.runs_all_depths:
            raise UsageError(
                f"request {request_id!r}: prompt_logprobs_every_loop needs launches of one depth, "
                f"and policy {policy.name} runs every depth in one; choose another policy, or "
                "leave it out to score the last loop"
            )
        try:
            params = self.limited(params, len(request.prompt_token_ids))
        except UsageError as error:
            raise UsageError(f"request {request_id!r}: {error}") from None
        samples = build_requests(
            request_id,
            request.prompt_token_ids,
            params,
            vocab_size=self.model_config.vocab_size,
            num_planes=self.model_config.num_loops,
            eos_token_ids=self._eos_token_ids,
            exit_defaults=self._exit_defaults,
            lookahead_gate=self.loaded.lookahead_gate,
        )
        if self._observer.records_gates:
            check_full_depth(f"request {request_id!r}", samples[0].exit_rule, self.model_config)
        return samples

    def _hand_out(self, batch: Batch, output: StepOutput) -> None:
        """Packs and dispatches a launch; the output takes what comes of a failure."""
        self._observer.mark(Moment.PACKING)
        try:
            packed = self.runner.pack(batch)
        except Exception as error:  # whatever it is, it concerns this batch alone
            while self._unread:
                self._apply_oldest(output)
            if self.scheduler.num_in_flight:  # else the device was lost meanwhile
                output.extend(self._fail_batch(batch, error))
            return
        self._observer.mark(Moment.STARTING)
        try:
            launched = self.dispatch(packed)
            self._observer.mark(Moment.DISPATCHED)
            if self._observer.waits_for_device:
                self._observer.mark(Moment.AWAITING)
                self.runner.wait(launched)
                self._observer.mark(Moment.COLLECTED)
        except Exception as error:  # the state was donated and is gone
            output.extend(self._lost(error))
            return
        self._unread.append(launched)
        self._observer.dispatched(self.scheduler)

    def _apply_oldest(self, output: StepOutput) -> None:
        """Waits for the oldest launch that is out, and tells its requests what it brought."""
        self._observer.mark(Moment.AWAITING)
        launched = self._unread[0]
        try:
            result = self.runner.collect(launched)
        except Exception as error:
            output.extend(self._lost(error))
            return
        self._observer.mark(Moment.COLLECTED)
        record = self.runner.record(launched, result)
        update = self.scheduler.apply(launched.batch, result)
        self._unread.popleft()
        self._stats.count(record)
        self._observer.applied(
            record, update.tokens, self.scheduler, self.runner.executables.num_compilations
        )
        output.extend(self._report(update))

    def dispatch(self, packed: PackedLaunch) -> Launched:
        """Starts a packed launch."""
        return self.runner.launch(packed)

    def stats(self) -> EngineStats:
        """Totals since the start and the present load."""
        return replace(
            self._stats,
            num_launches=dict(self._stats.num_launches),
            num_readbacks=self.runner.reader.num_reads,
            num_compilations=self.runner.executables.num_compilations,
            num_waiting=self.scheduler.num_waiting,
            num_active=self.scheduler.num_active,
            num_used_blocks=self.scheduler.num_used_blocks,
        )

    def _fail_batch(self, batch: Batch, error: Exception) -> StepOutput:
        logger.error("a launch failed before it reached the device", exc_info=error)
        self._stats.num_failed_launches += 1
        self._observer.failed(repr(error), self.scheduler, is_reset=False)
        return self._completed(self.scheduler.fail_batch(batch, f"the launch failed: {error}"))

    def _lost(self, error: Exception) -> StepOutput:
        logger.error("a launch failed on the device; starting over", exc_info=error)
        return self._reset(error)

    def _reset(self, error: BaseException) -> StepOutput:
        if isinstance(error, Exception):
            self._stats.num_failed_launches += 1
        self._observer.failed(repr(error), self.scheduler, is_reset=True)
        self._unread.clear()
        finished = self.scheduler.reset(f"the device state was lost: {error!r}")
        try:
            self.runner.reset()
        except Exception as second:  # out of memory, most likely
            logger.error("no fresh device state", exc_info=second)
            self.is_broken = True
            finished += self.scheduler.fail_waiting(f"no fresh device state: {second!r}")
        return self._completed(finished)

    def _report(self, update: StepUpdate) -> StepOutput:
        self._stats.num_output_tokens += len(update.tokens)
        output = self._completed(update.finished)
        return replace(output, tokens=[TokenEvent.from_output(token) for token in update.tokens])

    def _completed(self, finished: list[Request]) -> StepOutput:
        self._stats.num_cached_prompt_tokens += sum(
            request.num_cached_tokens for request in finished
        )
        for request in finished:
            self._forget(request)
            self._observer.ended(request, self.scheduler)
        return StepOutput(completions=[Completion.from_request(request) for request in finished])

    def _forget(self, request: Request) -> None:
        """Takes a sample out of its request; after an abort the id may be another request's."""
        samples = self._unfinished.get(request.request_id, {})
        if samples.get(request.sample_index) is request:
            del samples[request.sample_index]
            if not samples:
                del self._unfinished[request.request_id]
