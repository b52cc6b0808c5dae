"""The whole scheduler on a stub executor: random arrivals, aborts, exits and options.

The bound on waiting that is tested here, in launches. Every request that is past its prompt, and
the oldest one that is not, takes part in one of any `gap_bound` consecutive launches. A request
finishes within gap_bound * (the launches that it needs alone, plus those of the requests admitted
before it that were unfinished when its clock started). The clock starts at its arrival, or when a
sample no longer waits for its prompt to be computed, and, under priority, again whenever a request
of higher priority arrives; of the requests behind it in order, at most `admission_bypass_limit` are
admitted before it while its clock runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stub_executor import (
    VOCAB_SIZE,
    Driver,
    StubExecutor,
    StubPayload,
    check_drained,
    check_invariants,
    payload_of,
    score_of,
    signal_of,
    token_of,
)

from looped.sched import (
    NO_INDEX,
    POLICIES,
    ExitMode,
    ExitOptions,
    ExitRule,
    FinishReason,
    LaunchKind,
    Policy,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    Stage,
    resolve_exit,
    wavefront_policy,
)

MIXED = POLICIES["mixed"]
WAVEFRONTS = wavefront_policy(), wavefront_policy(2)

PREFIXES = tuple(tuple((7 * i + 3 * family) % VOCAB_SIZE for i in range(24)) for family in (0, 1))
"""Prompts share beginnings, so that the prefix cache has something to do."""


@dataclass
class Spec:
    """A request to be made, and when it is aborted."""

    step: int
    request: Request
    abort_step: int | None
    clock_start: int = 0
    num_admitted_at_start: int | None = None
    """Admissions before its clock started; None while it waits for another sample."""


@st.composite
def configs(draw: st.DrawFn, num_planes: int) -> SchedulerConfig:
    """Small pools, tight budgets, every option."""
    max_num_seqs = draw(st.integers(1, 5))
    budget = max_num_seqs + draw(st.integers(0, 8))
    block_size = draw(st.sampled_from([1, 2, 4]))
    smallest_pool = num_planes * -(-(24 + 6) // block_size)
    return SchedulerConfig(
        num_planes=num_planes,
        vocab_size=VOCAB_SIZE,
        num_blocks=smallest_pool + draw(st.integers(0, smallest_pool)),
        max_model_len=64,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        prefill_chunk_size=draw(st.none() | st.integers(1, budget - max_num_seqs + 1)),
        min_coda_batch_size=draw(st.integers(1, max_num_seqs)),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        admission_scan_limit=draw(st.integers(1, 8)),
        admission_bypass_limit=draw(st.integers(0, 3)),
        kv_watermark=draw(st.integers(0, num_planes * 3)),
        incremental_kv=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
    )


@st.composite
def exit_rules(draw: st.DrawFn, num_planes: int) -> ExitRule:
    """Every mode, with bounds and thresholds that bite."""
    mode = draw(st.sampled_from(ExitMode))
    if mode is ExitMode.TRACE:
        rest = draw(st.lists(st.integers(1, num_planes), max_size=5))
        options = ExitOptions(trace=(num_planes, *rest))
    else:
        max_loops = draw(st.integers(1, num_planes))
        options = ExitOptions(
            mode=mode,
            threshold=draw(st.sampled_from([0.0, 0.3, 0.6, 1.0])),
            min_loops=draw(st.integers(1, max_loops)),
            max_loops=max_loops,
        )
    return resolve_exit(options, ExitOptions(), num_planes)


@st.composite
def specs(draw: st.DrawFn, num_planes: int, index: int) -> Spec:
    """One request. Ids come from a small set: they are used again as soon as they are free."""
    length = draw(st.integers(1, 24))
    num_shared = draw(st.integers(0, length))
    prefix = PREFIXES[draw(st.integers(0, 1))][:num_shared]
    own = tuple((index + 11 * i) % VOCAB_SIZE for i in range(length - num_shared))
    step = draw(st.integers(0, 15))
    scoring = draw(st.sampled_from([PromptScoring.NONE] * 4 + [*PromptScoring]))
    request = Request(
        request_id=f"request-{draw(st.integers(0, 3))}" if draw(st.booleans()) else f"own-{index}",
        prompt_token_ids=prefix + own,
        max_tokens=draw(st.integers(1 if scoring is PromptScoring.NONE else 0, 6)),
        exit_rule=draw(exit_rules(num_planes)),
        stop_token_ids=frozenset(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4))),
        priority=draw(st.integers(0, 2)),
        payload=StubPayload(index, draw(st.sampled_from([None] * 9 + [0, 1]))),
        scoring=scoring,
    )
    return Spec(step, request, draw(abort_steps(step)))


@st.composite
def abort_steps(draw: st.DrawFn, step: int) -> int | None:
    """When a request is aborted, if it is."""
    return step + draw(st.integers(0, 25)) if draw(st.integers(0, 3)) == 0 else None


@st.composite
def samples(draw: st.DrawFn, first: Spec) -> list[Spec]:
    """Further samples of a request's prompt; some requests have them."""
    leader, drawn = first.request, []
    if draw(st.integers(0, 3)) == 0 and leader.max_tokens > 0:
        for index in range(1, 1 + draw(st.integers(1, 3))):
            sibling = Request(
                request_id=leader.request_id,
                sample_index=index,
                earlier_samples=(leader, *(spec.request for spec in drawn)),
                prompt_token_ids=leader.prompt_token_ids,
                max_tokens=leader.max_tokens,
                exit_rule=leader.exit_rule,
                priority=leader.priority,
                payload=StubPayload(payload_of(leader).seed + 100 * index),
            )
            drawn.append(Spec(first.step, sibling, draw(abort_steps(first.step))))
    return drawn


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[SchedulerConfig, list[Spec]]:
    """A configuration and the requests that meet it."""
    num_planes = draw(st.integers(1, 4))
    config = draw(configs(num_planes))
    num_requests = draw(st.integers(1, 10))
    planned = [draw(specs(num_planes, index)) for index in range(num_requests)]
    return config, [spec for first in planned for spec in (first, *draw(samples(first)))]


def expected_output(request: Request, num_planes: int) -> tuple[list[int], list[int], FinishReason]:
    """Return tokens, exit depths and how it ends, by the definitions, one token at a time."""
    rule, seed = request.exit_rule, payload_of(request).seed
    tokens: list[int] = []
    depths: list[int] = []
    for index in range(request.max_tokens):
        if index == payload_of(request).non_finite_at:
            return tokens, depths, FinishReason.ERROR
        depth = rule.max_loops
        if index == 0:
            depth = num_planes
        elif rule.mode is ExitMode.TRACE:
            depth = rule.trace[index] if index < len(rule.trace) else num_planes
        elif rule.threshold < 1:
            delay = 0 if rule.mode is ExitMode.OURO else 1
            first = rule.min_loops
            if rule.mode in (ExitMode.RANDOM_LOOKAHEAD, ExitMode.LOOKAHEAD):
                first = max(1, rule.min_loops - 1)
            for loop in range(first, rule.max_loops - delay):
                if signal_of(seed, index, loop) >= rule.threshold:
                    depth = loop + delay
                    break
        tokens.append(token_of(seed, index, depth))
        depths.append(depth)
        if tokens[-1] in request.stop_token_ids:
            return tokens, depths, FinishReason.STOP
    return tokens, depths, FinishReason.LENGTH


def launches_alone(request: Request, config: SchedulerConfig) -> int:
    """Return how many launches a request needs at most if it has the machine to itself."""
    num_chunks = -(-request.num_prompt_tokens // config.chunk_size)
    num_scores = num_chunks * len(scored_loops(request, config.num_planes))
    num_passes = num_chunks * config.num_planes
    return num_passes + num_scores + request.max_tokens * (config.num_planes + 1)


def scored_loops(request: Request, num_planes: int) -> list[int]:
    """Return the loops after which the prompt is scored."""
    if request.scoring is PromptScoring.NONE or request.num_prompt_tokens == 1:
        return []
    is_last_only = request.scoring is PromptScoring.LAST_LOOP
    return [num_planes] if is_last_only else [*range(1, num_planes + 1)]


def gap_bound(config: SchedulerConfig, num_ahead: int, has_scores: bool) -> int:
    """Return the launches within which everybody who is ready takes part in one.

    A decode row waits for prefill_interval prompt launches, with a coda after each; a coda row
    for at most P decode launches with prompt launches between them. Launches in flight split the
    decode rows into cohorts, each with its own turn. Every prompt item of a launch may be scored
    after it, in a launch of its own.
    """
    interval = config.prefill_interval
    num_launches = config.num_planes * (interval + 1) + 2 * interval + 2
    return num_launches * (1 + num_ahead) * (1 + has_scores * config.max_num_seqs)


class Run:
    """One scenario under one policy, checked at every step."""

    def __init__(
        self, config: SchedulerConfig, policy: Policy, planned: list[Spec], num_ahead: int = 0
    ) -> None:
        self.config = config
        self.executor = StubExecutor(config, config.max_window(policy))
        self.scheduler = Scheduler(config, self.executor, policy)
        self.driver = Driver(self.scheduler, self.executor, num_ahead)
        self.planned = planned
        self.added: list[Spec] = []
        self.aborted: dict[Request, int] = {}
        """Requests by the number of outputs that they had when they were aborted."""
        has_scores = any(spec.request.scoring is not PromptScoring.NONE for spec in planned)
        self.max_gap = gap_bound(config, num_ahead, has_scores)
        self.finish_launch: dict[Request, int] = {}
        self.ready_since: dict[Request, int] = {}

    def run(self) -> None:
        """Play the scenario to its end."""
        for step in range(60):
            for spec in self.planned:
                if spec.step == step:
                    self._add(spec)
            for spec in self.added:
                if spec.abort_step == step:
                    self._abort(spec.request)
            self._step()
        while self.scheduler.has_unfinished_requests:
            self._step()
        check_drained(self.scheduler, self.executor)
        for spec in self.added:
            self._check_outcome(spec)

    def _add(self, spec: Spec) -> None:
        request = spec.request
        name = request.request_id, request.sample_index
        unfinished = self.scheduler.unfinished_request(*name)
        if unfinished is not None:
            self._abort(unfinished)
        self.scheduler.add(request)
        self.added.append(spec)
        for other in self.added:
            if self._order(request) <= self._order(other.request):
                other.clock_start = self.executor.num_launches
        self._start_clocks()

    def _start_clocks(self) -> None:
        resources = self.scheduler._resources
        for spec in self.added:
            is_waiting = spec.num_admitted_at_start is None
            if is_waiting and not resources.blocks.awaits_leader(spec.request):
                spec.num_admitted_at_start = resources._num_admitted
                spec.clock_start = self.executor.num_launches

    def _abort(self, request: Request) -> None:
        if request.stage is Stage.FINISHED or request in self.aborted:
            return
        self.aborted[request] = len(request.output_token_ids)
        was_in_flight = request.is_in_flight
        ended = self.scheduler.abort(request.request_id, request.sample_index)
        assert (ended is None) == was_in_flight
        if ended is not None:
            assert ended is request
            self.driver.finished.append(request)
        check_invariants(self.scheduler)
        self._start_clocks()

    def _step(self) -> None:
        num_before = self.executor.num_launches + len(self.driver.finished)
        num_pending = len(self.driver.pending)
        self.driver.step()
        if self.scheduler.has_unfinished_requests:
            is_moving = self.executor.num_launches + len(self.driver.finished) > num_before
            assert is_moving or len(self.driver.pending) < num_pending, "a step was lost"
        check_invariants(self.scheduler)
        self._start_clocks()
        self._check_gaps()
        for request in self.driver.finished:
            self.finish_launch.setdefault(request, self.executor.num_launches)

    def _check_gaps(self) -> None:
        """Check that whoever is ready has taken part in a recent launch."""
        ready = set()
        is_oldest_prompt = True
        for request in self.scheduler._resources.active:
            if request.stage is Stage.PREFILL:
                if is_oldest_prompt:
                    ready.add(request)
                is_oldest_prompt = False
            else:
                ready.add(request)
        self.ready_since = {
            request: self.ready_since.get(request, self.executor.num_launches) for request in ready
        }
        for request, since in self.ready_since.items():
            last = max(since, self.executor.last_launch.get(request, 0))
            assert self.executor.num_launches - last <= self.max_gap

    def _check_outcome(self, spec: Spec) -> None:
        request = spec.request
        tokens, depths, reason = expected_output(request, self.config.num_planes)
        assert request in self.driver.finished
        assert request.output_token_ids == tokens[: len(request.output_token_ids)]
        assert request.exit_depths == depths[: len(request.exit_depths)]
        assert len(request.exit_depths) == len(request.output_token_ids) == len(request.logprobs)
        if request in self.aborted:
            assert request.finish_reason is FinishReason.ABORT
            assert len(request.output_token_ids) == self.aborted[request]
            return
        assert request.output_token_ids == tokens
        assert request.finish_reason is reason
        self._check_scores(request)
        if reason is not FinishReason.ERROR:
            self._check_work(request, depths)
        self._check_waiting(spec)

    def _check_scores(self, request: Request) -> None:
        """Check that every token after the first was scored once after each loop asked for."""
        loops = scored_loops(request, self.config.num_planes)
        assert [scores.loop for scores in request.prompt_scores] == loops
        for scores in request.prompt_scores:
            positions = range(1, request.num_prompt_tokens)
            assert scores.logprobs == [
                score_of(request, position, scores.loop) for position in positions
            ]
            assert len(scores.best_token_ids) == len(positions)
        if request.scoring is not PromptScoring.NONE:
            assert request.num_cached_tokens == 0

    def _check_work(self, request: Request, depths: list[int]) -> None:
        """Check that token-loops are conserved: every row ran, none ran twice."""
        num_computed = request.num_prompt_tokens - request.num_cached_tokens
        expected = num_computed * self.config.num_planes + sum(depths[1:])
        assert self.executor.rows_run[request] == expected

    def _check_waiting(self, spec: Spec) -> None:
        """Check the bound that this module states."""
        request = spec.request
        admitted_before = [
            other.request
            for other in self.added
            if NO_INDEX < other.request.admission_index < request.admission_index
        ]
        behind = [
            other
            for other in admitted_before
            if self._order(other) > self._order(request)
            and other.arrival_index > request.arrival_index
            and other.admission_index >= (spec.num_admitted_at_start or 0)
        ]
        assert len(behind) <= request.num_bypasses <= self.config.admission_bypass_limit
        rivals = [
            other for other in admitted_before if self.finish_launch[other] > spec.clock_start
        ]
        work = sum(launches_alone(other, self.config) for other in [request, *rivals])
        assert self.finish_launch[request] - spec.clock_start <= self.max_gap * work

    def _order(self, request: Request) -> tuple[int, int]:
        is_by_priority = self.config.scheduling_policy == "priority"
        return (request.priority if is_by_priority else 0, request.arrival_index)


@settings(
    max_examples=1000,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    scenarios(),
    st.sampled_from([*POLICIES.values(), *WAVEFRONTS]),
    st.sampled_from([0, 0, 1, 2]),
    st.booleans(),
)
def test_any_run_is_safe_fair_and_exact_under_every_policy(
    scenario: tuple[SchedulerConfig, list[Spec]],
    policy: Policy,
    num_ahead: int,
    prompt_shortcut: bool,
) -> None:
    config, planned = scenario
    if policy is MIXED:
        chunk = config.chunk_size
        config = replace(config, prompt_shortcut=prompt_shortcut, prefill_chunk_size=chunk)
    if policy.max_window > 1:
        chunk = config.chunk_size
        config = replace(config, prefix_caching=None, prefill_chunk_size=chunk)
    if policy.runs_all_depths:
        for spec in planned:  # which it would refuse
            if spec.request.scoring is PromptScoring.EVERY_LOOP:
                spec.request.scoring = PromptScoring.LAST_LOOP
    Run(config, policy, planned, num_ahead).run()


def test_mixed_batches_form_within_the_contract_and_keep_prompts_in_order() -> None:
    """One decoder and two long prompts: the older prompt leads every launch until it is done."""
    config = SchedulerConfig(
        num_planes=4,
        vocab_size=VOCAB_SIZE,
        num_blocks=400,
        max_model_len=64,
        max_num_seqs=3,
        max_num_batched_tokens=9,
        prefill_chunk_size=4,
    )
    full_depth = resolve_exit(ExitOptions(), ExitOptions(), 4)
    decoder, older, newer = (
        Request(
            request_id=name,
            prompt_token_ids=PREFIXES[index % 2][:length],
            max_tokens=8,
            exit_rule=full_depth,
            payload=StubPayload(index),
        )
        for index, (name, length) in enumerate((("decoder", 1), ("older", 16), ("newer", 16)))
    )
    executor = StubExecutor(config)
    driver = Driver(Scheduler(config, executor, MIXED), executor)
    driver.scheduler.add(decoder)
    while not decoder.output_token_ids:
        driver.step()
    driver.scheduler.add(older)
    driver.scheduler.add(newer)
    num_launches = 0
    while newer.stage in (Stage.WAITING, Stage.PREFILL):
        batch = driver.step()
        assert batch is not None
        if batch.launch is LaunchKind.CODA:
            continue
        num_launches += 1
        prompts = [item.request for item in batch.items[batch.num_decode :]]
        assert prompts in ([older, newer], [newer], [])
        assert decoder.stage is Stage.FINISHED or batch.items[0].request is decoder
    assert num_launches == 16, "four chunks of each prompt, side by side, one depth a launch"
    assert executor.num_mixed_launches >= 16
    driver.drain()
    check_drained(driver.scheduler, executor)
