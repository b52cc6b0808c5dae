"""The whole scheduler on a stub executor: random arrivals, aborts, exits and options.

What is checked, and how long anybody may have to wait, is said in `whole_run`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_policies import policies_under_test
from scenarios import PREFIXES, Spec, scenarios
from stub_executor import VOCAB_SIZE, Driver, StubExecutor, StubPayload, check_drained
from whole_run import Run

from looped.sched import (
    POLICIES,
    ExitOptions,
    Policy,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    Stage,
    resolve_exit,
)

MIXED = POLICIES["mixed"]
UNDER_TEST = policies_under_test()


@pytest.mark.parametrize(
    ("name", "num_examples"),
    [
        *((name, 40) for name in UNDER_TEST),
        *(pytest.param(name, 120, marks=pytest.mark.long) for name in UNDER_TEST),
    ],
)
def test_any_run_is_safe_fair_and_exact_under_every_policy(name: str, num_examples: int) -> None:
    @settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        scenario=scenarios(),
        num_ahead=st.sampled_from([0, 1, 2, 4]),
        prompt_shortcut=st.booleans(),
    )
    def run(
        scenario: tuple[SchedulerConfig, list[Spec]], num_ahead: int, prompt_shortcut: bool
    ) -> None:
        check_run(UNDER_TEST[name], scenario, num_ahead, prompt_shortcut)

    run()


def check_run(
    policy: Policy,
    scenario: tuple[SchedulerConfig, list[Spec]],
    num_ahead: int,
    prompt_shortcut: bool,
) -> None:
    """Run a scenario under a policy, without what the policy would refuse."""
    config, planned = scenario
    if policy.uses_prompt_shortcut:
        chunk = config.chunk_size
        config = replace(config, prompt_shortcut=prompt_shortcut, prefill_chunk_size=chunk)
    if policy.max_window > 1:
        chunk = config.chunk_size
        config = replace(config, prefix_caching=None, prefill_chunk_size=chunk)
    if policy.needs_depths:
        num_ahead = 0
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
        num_launches += 1
        prompts = [item.request for item in batch.items[batch.num_decode :]]
        assert prompts in ([older, newer], [newer], [])
        assert decoder.stage is Stage.FINISHED or batch.items[0].request is decoder
    assert num_launches == 16, "four chunks of each prompt, side by side, one depth a launch"
    assert executor.num_mixed_launches >= 16
    driver.drain()
    check_drained(driver.scheduler, executor)
