"""Random scenarios for a whole scheduler: a configuration, and the requests that meet it when."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from stub_executor import VOCAB_SIZE, StubPayload, payload_of

from looped.sched import (
    ExitMode,
    ExitOptions,
    ExitRule,
    PromptScoring,
    Request,
    SchedulerConfig,
    resolve_exit,
)

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
        max_decode_rows=draw(st.none() | st.integers(1, max_num_seqs)),
        prefill_chunk_size=draw(st.none() | st.integers(1, budget - max_num_seqs + 1)),
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
