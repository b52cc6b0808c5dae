"""How long somebody waits for others, in launches: who arrives, and who decodes beside scores."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scheduler_rig import NUM_PLANES, request_of, rig
from stub_executor import Driver, check_drained

from looped.sched import Batch, LaunchKind, PromptScoring

AHEAD = (0, 1, 2, 4)
LONG = tuple(i % 50 for i in range(500))


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize("policy", ["mixed", "separate", "atomic", "wavefront"])
@pytest.mark.parametrize("num_before", [1, 2, 6, 13])
def test_who_arrives_beside_a_lone_prompt_starts_after_what_is_out(
    policy: str, num_ahead: int, num_before: int
) -> None:
    """A lone prompt does not run further ahead of the host than decode rows do."""
    scheduler, driver = rig(
        policy=policy, num_blocks=8000, max_model_len=1024, max_num_batched_tokens=64,
        max_num_seqs=4, prefill_chunk_size=32 if policy != "wavefront" else 12,
    )  # fmt: skip
    driver = Driver(scheduler, driver.executor, num_ahead)
    scheduler.add(request_of("long", prompt=LONG, max_tokens=1))
    for _ in range(num_before):
        driver.step()
    assert len(driver.pending) == min(num_ahead, num_before), "the host waits for prompts, too"
    short = request_of("short")
    scheduler.add(short)
    num_launches = len(driver.pending)  # that the device may still have to run
    while short not in driver.executor.last_launch:
        driver.step()
        num_launches += 1
    assert num_launches <= num_ahead + 1
    driver.drain()
    check_drained(scheduler, driver.executor)


def gaps_beside_scored_prompts(policy: str, num_ahead: int) -> list[list[Batch]]:
    """One decoder beside 15 prompts scored after every loop: the launches from token to token."""
    scheduler, driver = rig(
        policy=policy, num_blocks=4000, max_num_seqs=16, max_num_batched_tokens=64,
        prefill_chunk_size=8,
    )  # fmt: skip
    driver = Driver(scheduler, driver.executor, num_ahead)
    decoder = request_of("decoder", prompt=(7,), max_tokens=12)
    scheduler.add(decoder)
    while not decoder.output_token_ids:
        driver.step()
    for index in range(15):
        scored = request_of(
            f"scored {index}", prompt=(1, 2, 3, index), max_tokens=0,
            scoring=PromptScoring.EVERY_LOOP,
        )  # fmt: skip
        scheduler.add(scored)
    gaps: list[list[Batch]] = [[]]
    while not decoder.is_finished:
        batch = driver.step()
        if batch is not None:
            gaps[-1].append(batch)
            if decoder in [item.request for item in batch.head_items]:
                gaps.append([])
    driver.drain()
    check_drained(scheduler, driver.executor)
    return gaps[1:-1]


@pytest.mark.parametrize("num_ahead", AHEAD)
@pytest.mark.parametrize(
    ("policy", "most"), [("mixed", 2), ("wavefront", 2), ("no-refill", 2), ("separate", 4)]
)
def test_prompts_that_are_scored_do_not_multiply_a_decoders_gap(
    policy: str, most: int, num_ahead: int
) -> None:
    """2 P launches where prompts run beside decode rows, 4 P where the two alternate."""
    check_gaps(gaps_beside_scored_prompts(policy, num_ahead), most, policy != "no-refill")


@pytest.mark.parametrize("policy", ["deepest-first", "shallowest-first", "shortest-lookahead"])
def test_no_more_do_they_under_policies_that_order_by_depth(policy: str) -> None:
    check_gaps(gaps_beside_scored_prompts(policy, 0), 2, True)


def check_gaps(gaps: list[list[Batch]], most: int, has_scores: bool) -> None:
    assert len(gaps) >= 8
    assert max(map(len, gaps)) <= most * NUM_PLANES
    kinds = [batch.launch for gap in gaps for batch in gap]
    assert (kinds.count(LaunchKind.SCORE) > 10) == has_scores
    assert (LaunchKind.SCORE, LaunchKind.SCORE) not in pairwise(kinds)
    if has_scores:
        assert max(map(len, gaps)) > NUM_PLANES, "some of them are longer for it"


@pytest.mark.parametrize("num_ahead", AHEAD)
def test_while_nobody_decodes_scores_follow_each_other(num_ahead: int) -> None:
    scheduler, driver = rig(policy="mixed", max_num_seqs=4, prefill_chunk_size=8)
    driver = Driver(scheduler, driver.executor, num_ahead)
    for index in range(3):
        scored = request_of(
            str(index), prompt=(1, 2, index), max_tokens=0, scoring=PromptScoring.EVERY_LOOP
        )
        scheduler.add(scored)
    kinds = []
    while scheduler.has_unfinished_requests:
        if (batch := driver.step()) is not None:
            kinds.append(batch.launch)
    one_loop = [LaunchKind.RECURRENT, *[LaunchKind.SCORE] * 3]
    assert kinds == one_loop * NUM_PLANES
