"""Log-probabilities of prompt tokens: score launches between the passes of a scored prompt."""

from dataclasses import replace

import pytest
from scheduler_rig import NUM_PLANES, request_of, rig
from stub_executor import StubPayload, check_drained, score_of

from looped.sched import (
    Batch,
    FinishReason,
    InterfaceError,
    LaunchKind,
    LaunchResult,
    Policy,
    PromptScoring,
    RequestError,
    Scheduler,
    ScoreResult,
    Selection,
    Stage,
)

LAST, EVERY = PromptScoring.LAST_LOOP, PromptScoring.EVERY_LOOP
PROMPT = (1, 2, 3, 4, 5, 6)
"""Two chunks: four rows with a next token each, then one with and one without."""


def launches_of(driver: object) -> list[tuple[str, int, int]]:
    """Run to the end; return kind, first depth and rows of every launch."""
    launches = []
    while driver.scheduler.has_unfinished_requests:  # type: ignore[attr-defined]
        batch = driver.step()  # type: ignore[attr-defined]
        launches.append((batch.launch.name, batch.items[0].depth, batch.num_rows))
    return launches


def test_a_chunk_is_scored_once_after_its_last_depth() -> None:
    scheduler, driver = rig()
    request = request_of(prompt=PROMPT, max_tokens=1, scoring=LAST)
    scheduler.add(request)
    passes = [[("RECURRENT", depth, rows) for depth in range(NUM_PLANES)] for rows in (4, 2)]
    assert launches_of(driver) == [
        *passes[0], ("SCORE", 3, 4), *passes[1], ("SCORE", 3, 1),
    ]  # fmt: skip
    assert driver.executor.num_head_rows == 1, "behind the last score"
    (scores,) = request.prompt_scores
    assert scores.loop == NUM_PLANES
    assert scores.logprobs == [score_of(request, position, 4) for position in range(1, 6)]
    check_drained(scheduler, driver.executor)


def test_a_chunk_can_be_scored_after_every_depth() -> None:
    scheduler, driver = rig()
    request = request_of(prompt=PROMPT[:3], max_tokens=1, scoring=EVERY)
    scheduler.add(request)
    expected = [
        launch
        for depth in range(NUM_PLANES)
        for launch in (("RECURRENT", depth, 3), ("SCORE", depth, 2))
    ]
    assert launches_of(driver) == expected
    assert driver.executor.num_head_rows == 1, "behind the last score"
    assert [scores.loop for scores in request.prompt_scores] == [1, 2, 3, 4]
    assert [scores.logprobs[1] for scores in request.prompt_scores] == [
        score_of(request, 2, loop) for loop in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("scoring", [LAST, EVERY])
def test_a_chunk_without_a_next_token_skips_the_launch(scoring: PromptScoring) -> None:
    scheduler, driver = rig()
    request = request_of(prompt=PROMPT[:5], max_tokens=1, scoring=scoring)
    scheduler.add(request)
    kinds = [kind for kind, _, _ in launches_of(driver)]
    assert kinds[-4:] == ["RECURRENT"] * NUM_PLANES, "the fifth token is a chunk"
    assert driver.executor.num_head_rows == 1
    assert len(request.prompt_scores[-1].logprobs) == 4


@pytest.mark.parametrize("policy", ["separate", "atomic", "mixed"])
@pytest.mark.parametrize("length", [1, 4, 5, 6])
def test_nothing_need_be_generated(policy: str, length: int) -> None:
    scheduler, driver = rig(policy=policy)
    request = request_of(prompt=PROMPT[:length], max_tokens=0, scoring=LAST)
    scheduler.add(request)
    kinds = {kind for kind, _, _ in launches_of(driver)}
    assert driver.executor.num_head_rows == 0
    assert ("SCORE" in kinds) == (length > 1)
    assert request.finish_reason is FinishReason.LENGTH
    assert request.output_token_ids == []
    assert driver.finished == [request]
    assert sum(len(scores.logprobs) for scores in request.prompt_scores) == length - 1
    check_drained(scheduler, driver.executor)


def test_rows_that_await_a_score_take_turns_with_decode_rows_the_oldest_first() -> None:
    """While none decode, one after the other."""
    scheduler, driver = rig(policy="mixed", max_num_batched_tokens=32)
    decoder = request_of("decoder", prompt=(7,), max_tokens=4)
    scheduler.add(decoder)
    while not decoder.output_token_ids:
        driver.step()
    older = request_of("older", prompt=PROMPT[:4], max_tokens=0, scoring=EVERY)
    newer = request_of("newer", prompt=PROMPT[1:5], max_tokens=0, scoring=EVERY)
    scheduler.add(older)
    scheduler.add(newer)
    batch = driver.step()
    assert batch is not None
    assert [item.request for item in batch.items] == [decoder, older, newer]
    launches = [driver.step() for _ in range(5)]
    assert [
        (batch.launch.name, [item.request.request_id for item in batch.items])
        for batch in launches
        if batch is not None
    ] == [
        ("SCORE", ["older"]),
        ("RECURRENT", ["decoder", "older"]),
        ("SCORE", ["older"]),
        ("RECURRENT", ["decoder", "older"]),
        ("SCORE", ["older"]),
    ]
    scheduler.abort("decoder")
    kinds = [batch.launch.name for _ in range(2) if (batch := driver.step()) is not None]
    assert kinds == ["SCORE", "RECURRENT"], "nobody decodes"


def test_rows_that_await_a_score_are_not_offered() -> None:
    """Their next pass comes behind the score, which need not be applied before it."""
    scheduler, driver = rig()
    scheduler.add(request_of(prompt=PROMPT[:4], max_tokens=0, scoring=EVERY))
    driver.step()
    score = scheduler.schedule()
    assert score is not None
    assert score.launch is LaunchKind.SCORE
    following = scheduler.schedule()
    assert following is not None
    assert following.items[0].depth == 1
    for batch in (score, following):
        scheduler.apply(batch, driver.executor.execute(batch))
    driver.drain()
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize(
    ("scoring", "num_passes"), [(EVERY, 1), (LAST, NUM_PLANES), (PromptScoring.NONE, NUM_PLANES)]
)
def test_a_prompt_scored_after_every_loop_never_runs_several_depths_at_once(
    scoring: PromptScoring, num_passes: int
) -> None:
    """Nor do prompts beside it, whether it fits into their launch or not."""
    sizes = {"max_num_batched_tokens": 8, "prefill_chunk_size": 5, "max_num_seqs": 2}
    scheduler, driver = rig(policy="mixed", prompt_shortcut=True, **sizes)
    scheduler.add(request_of("a", prompt=PROMPT[:5], max_tokens=1))
    scheduler.add(request_of("b", prompt=PROMPT[1:], max_tokens=1, scoring=scoring))
    batch = driver.step()
    assert batch is not None
    assert [item.request.request_id for item in batch.items] == ["a"]
    assert batch.num_passes == num_passes
    driver.drain()


def test_a_policy_that_runs_every_depth_at_once_refuses_scores_of_every_loop() -> None:
    scheduler, _ = rig(policy="atomic")
    with pytest.raises(
        RequestError, match=r"scoring EVERY_LOOP needs.*policy atomic runs every depth in one"
    ):
        scheduler.add(request_of(scoring=EVERY))
    assert not scheduler.has_unfinished_requests


def test_a_launch_of_several_passes_with_such_a_prompt_is_the_policys_fault() -> None:
    def take(view: object, stage: Stage) -> Selection:
        return Selection(view.prompt_items, NUM_PLANES)  # type: ignore[attr-defined]

    hasty = Policy(name="hasty", choose=lambda view: (Stage.PREFILL, True), take=take)
    separate, driver = rig()
    scheduler = Scheduler(separate.config, driver.executor, hasty)
    scheduler.add(request_of(scoring=EVERY))
    with pytest.raises(InterfaceError, match=r"hasty: .*none of them scored after every loop"):
        scheduler.schedule()


def test_a_scored_prompt_takes_no_hits_and_gives_them() -> None:
    scheduler, driver = rig()
    for name, scoring, num_cached in (("a", LAST, 0), ("b", LAST, 0), ("c", None, 4)):
        request = request_of(name, prompt=PROMPT, scoring=scoring or PromptScoring.NONE)
        scheduler.add(request)
        driver.drain()
        assert request.num_cached_tokens == num_cached


def test_an_abort_while_the_score_is_out_drops_it() -> None:
    scheduler, driver = rig()
    request = request_of(prompt=PROMPT, max_tokens=0, scoring=EVERY)
    scheduler.add(request)
    driver.step()
    score = scheduler.schedule()
    assert score is not None
    result = driver.executor.execute(score)
    assert scheduler.abort(request.request_id) is request
    assert request.finish_reason is FinishReason.ABORT
    update = scheduler.apply(score, result)
    assert (update.finished, update.tokens) == ([], [])
    assert request.prompt_scores == []
    check_drained(scheduler, driver.executor)


def test_scores_that_are_not_finite_end_the_request_and_its_cached_blocks() -> None:
    scheduler, driver = rig()
    request = request_of(prompt=PROMPT, scoring=LAST, payload=StubPayload(0, -1))
    scheduler.add(request)
    driver.drain()
    assert request.finish_reason is FinishReason.ERROR
    assert "finite logits for prompt tokens 1 to 4 after loop 4" in (request.error or "")
    assert scheduler.num_cached_blocks == 0
    check_drained(scheduler, driver.executor)


@pytest.mark.parametrize(
    "change",
    [{"logprobs": [0.0]}, {"best_token_ids": [1, 2, 3, 4]}, {"top_logprobs": []}],
    ids=lambda change: next(iter(change)),
)
def test_a_result_that_does_not_fit_changes_nothing(change: dict[str, list[float]]) -> None:
    scheduler, driver = rig()
    request = request_of(prompt=PROMPT[:4], max_tokens=0, scoring=EVERY)
    scheduler.add(request)
    driver.step()
    score = scheduler.schedule()
    assert score is not None
    result = driver.executor.execute(score)
    assert result.score is not None
    with pytest.raises(InterfaceError, match="expected 3 entries"):
        scheduler.apply(score, LaunchResult(score=replace(result.score, **change)))
    assert scheduler.num_in_flight == 1
    scheduler.apply(score, result)
    assert len(request.prompt_scores[0].logprobs) == 3


def test_a_launch_takes_its_own_kind_of_result() -> None:
    scheduler, driver = rig()
    scheduler.add(request_of())
    batch = scheduler.schedule()
    assert isinstance(batch, Batch)
    with pytest.raises(InterfaceError, match="expected no score result of a RECURRENT launch"):
        scheduler.apply(batch, LaunchResult(score=ScoreResult([], [], True)))
    scheduler.apply(batch, driver.executor.execute(batch))


def test_nothing_to_generate_needs_something_to_score() -> None:
    scheduler, _ = rig()
    with pytest.raises(RequestError, match="or 0 where the prompt is scored; got 0"):
        scheduler.add(request_of(max_tokens=0))
    with pytest.raises(RequestError, match="got -1"):
        scheduler.add(request_of(max_tokens=-1, scoring=LAST))
