"""A whole scenario under one policy on the stub executor, checked at every step.

The bounds on waiting that are tested here, in launches. Under a policy that goes by admission
order, while max_decode_rows is its default, every request that is past its prompt, and the oldest
one that is not, takes part in one of any `gap_bound` consecutive launches. Under any other policy,
and for all other requests, it is one of any `aged_gap_bound` launches, because the scheduler ages
what is passed over. A request finishes within the policy's gap * (the launches that it needs alone,
plus those of the requests admitted before it that were unfinished when its clock started). The
clock starts at its arrival, or when a sample no longer waits for its prompt to be computed, and,
under priority, again whenever a request of higher priority arrives; of the requests behind it in
order, at most `admission_bypass_limit` are admitted before it while its clock runs.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenarios import Spec, scenarios
from stub_executor import (
    Driver,
    StubExecutor,
    check_drained,
    check_invariants,
    ends_unseen,
    payload_of,
    score_of,
    signal_of,
    token_of,
)

from looped.sched import (
    NO_INDEX,
    ExitMode,
    FinishReason,
    Policy,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    Stage,
)

IN_ORDER = frozenset(("mixed", "separate", "atomic", "wavefront", "no-refill"))
"""Policies that go by admission order while all decode rows fit."""


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
    """Return the launches within which whoever goes first among those that are ready takes part.

    A decode row waits for prefill_interval prompt launches, and a prompt for a decode launch after
    each of as many; and everybody for those that are overdue, once each. A launch that scores comes
    between any two others. A row that has ended unseen may take the place of one that lives, for as
    many launches as run ahead.
    """
    interval = config.prefill_interval
    num_launches = interval + 2 + config.max_num_seqs
    return (num_launches + num_ahead) * (1 + has_scores)


def aged_gap_bound(config: SchedulerConfig, num_ahead: int, has_scores: bool) -> int:
    """Return the launches within which everybody who is ready takes part, whatever is preferred.

    An item is overdue after 4 * P * max_num_seqs launches that could take it and goes before all
    but those that are overdue as well. Each of these launches comes at the latest when it would
    under `gap_bound`.
    """
    num_launches = 4 * config.num_planes * config.max_num_seqs + config.max_num_seqs
    return num_launches * gap_bound(config, num_ahead, has_scores)


def is_in_order(policy: Policy, config: SchedulerConfig) -> bool:
    """Whether a policy takes every ready decode row, and prompts in admission order."""
    return policy.name in IN_ORDER and config.decode_row_limit == config.max_num_seqs


class Run:
    """One scenario under one policy, checked at every step."""

    def __init__(
        self, config: SchedulerConfig, policy: Policy, planned: list[Spec], num_ahead: int = 0
    ) -> None:
        self.config = config
        self.executor = StubExecutor(config, config.max_window(policy))
        self.scheduler = Scheduler(config, self.executor, policy)
        self.driver = Driver(self.scheduler, self.executor, num_ahead)
        self.num_ahead = num_ahead
        self.planned = planned
        self.added: list[Spec] = []
        self.aborted: dict[Request, int] = {}
        """Requests by the number of outputs that they had when they were aborted."""
        has_scores = any(spec.request.scoring is not PromptScoring.NONE for spec in planned)
        self.aged_gap = aged_gap_bound(config, num_ahead, has_scores)
        self.is_in_order = is_in_order(policy, config)
        self.first_gap = gap_bound(config, num_ahead, has_scores)
        self.finish_launch: dict[Request, int] = {}
        self.ready_since: dict[tuple[Request, int], int] = {}
        """Requests and bounds on their gaps, by the launch from which the bound holds."""

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
        resources = self.scheduler.resources
        for spec in self.added:
            is_waiting = spec.num_admitted_at_start is None
            if is_waiting and not resources.blocks.awaits_leader(spec.request):
                spec.num_admitted_at_start = resources.num_admitted
                spec.clock_start = self.executor.num_launches

    def _abort(self, request: Request) -> None:
        if request.stage is Stage.FINISHED or request in self.aborted:
            return
        self.aborted[request] = len(request.output_token_ids)
        ended = self.scheduler.abort(request.request_id, request.sample_index)
        assert ended is request
        self.driver.finished.append(request)
        check_invariants(self.scheduler)
        self._start_clocks()

    def _step(self) -> None:
        num_before = self.executor.num_launches + len(self.driver.finished)
        num_pending = len(self.driver.pending)
        self.driver.step(now=float(self.executor.num_launches))
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
        for request in self.scheduler.resources.active:
            is_first = request.stage is not Stage.PREFILL or is_oldest_prompt
            if request.stage is Stage.PREFILL:
                is_oldest_prompt = False
            ready.add((request, self.first_gap if self.is_in_order and is_first else self.aged_gap))
        now = self.executor.num_launches
        self.ready_since = {pair: self.ready_since.get(pair, now) for pair in ready}
        for (request, bound), since in self.ready_since.items():
            last = max(since, self.executor.last_launch.get(request, 0))
            assert now - last <= bound

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
        """Check that token-loops are conserved: every row ran, none ran twice.

        A row that has ended unseen may be in as many launches as run ahead: masked, or, if only the
        host knows the stop id, alive.
        """
        num_computed = request.num_prompt_tokens - request.num_cached_tokens
        expected = num_computed * self.config.num_planes + sum(depths[1:])
        num_more = self.executor.rows_run[request] - expected
        if request.finish_reason is not FinishReason.ERROR:  # whose last token has no depth
            assert 0 <= num_more <= (self.num_ahead if ends_unseen(request) else 0)
        assert self.executor.rows_masked[request] <= self.num_ahead

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
        gap = self.first_gap if self.is_in_order else self.aged_gap
        assert self.finish_launch[request] - spec.clock_start <= gap * work

    def _order(self, request: Request) -> tuple[int, int]:
        is_by_priority = self.config.scheduling_policy == "priority"
        return (request.priority if is_by_priority else 0, request.arrival_index)


def run_many(policy: Policy, *, max_examples: int) -> None:
    """Check so many random scenarios, always the same, under a policy with one item a prompt."""

    @settings(
        max_examples=max_examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(scenario=scenarios(), num_ahead=st.integers(0, 4))
    def run(scenario: tuple[SchedulerConfig, list[Spec]], num_ahead: int) -> None:
        Run(scenario[0], policy, scenario[1], num_ahead).run()

    run()
