"""Each rule of validity trips on a run that was made to break it, and on no sound one."""

from dataclasses import replace
from pathlib import Path

import pytest
from stub_target import OPTIONS, WORKLOAD, play

from looped.bench.arms import ARMS, round_order
from looped.bench.interference.comparison import compare
from looped.bench.interference.validity import (
    RUN_RULES,
    SET_RULES,
    all_requests_complete,
    check_run,
    check_runs,
    num_parted_requests,
)
from looped.engine.events import EndEvent, LaunchEvent
from looped.sched import FinishReason

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
TRACE = (4, *(1 + index % 4 for index in range(39)))


def rounds(*, counts=(3, 2), **changes):
    """All arms, round by round, as a valid benchmark has them."""
    runs = []
    for process, count in enumerate(counts):
        names = [(i, name) for i in range(count) for name in round_order(process, i)]
        for position, (index, name) in enumerate(names):
            runs.append(play(name, place=(process, index, position), **changes))
    return runs


@pytest.fixture(scope="module")
def sound():
    return rounds()


def with_events(run, change):
    """The run with every event changed, or taken out where `change` returns None."""
    changed = [change(event) for event in run.events]
    return replace(run, events=tuple(event for event in changed if event is not None))


def with_launch(run, index, **changes):
    """The run with one launch's record changed."""
    launch = run.timeline.launches[index]
    changed = replace(launch, record=replace(launch.record, **changes))
    return with_events(run, lambda event: changed if event is launch else event)


def broken_rules(run):
    return {violation.rule for violation in check_run(run)}


def test_a_sound_benchmark_breaks_no_rule(sound):
    assert check_runs(sound) == []
    assert compare(sound).is_valid
    assert compare(sound).num_pairs == 5


def test_replayed_exits_break_no_rule():
    workload = replace(WORKLOAD, traces=(TRACE, TRACE[::-1]))
    workload = replace(workload, traces=(TRACE, (4, *TRACE[:0:-1])))
    runs = rounds(workload=workload)
    assert check_runs(runs) == []
    assert compare(runs).is_valid


@pytest.mark.parametrize("arm", ["A0", "A1", "A2"])
def test_bystanders_break_no_rule(arm):
    assert not check_run(play(arm, workload=replace(WORKLOAD, bystander_tokens=4)))


def test_all_requests_complete():
    run = play("A2")
    unended = with_events(
        run, lambda event: None if getattr(event, "request_id", "") == "prompt-1" else event
    )
    assert [str(v) for v in check_run(unended)] == [
        "all_requests_complete, A2 (process 0, round 0): prompt-1 never arrived"
    ]
    aborted = with_events(
        run,
        lambda event: (
            replace(event, reason=FinishReason.ABORT)
            if isinstance(event, EndEvent) and event.request_id == "decoder-0"
            else event
        ),
    )
    assert "expected 40 tokens and reason length, got 40 and abort" in str(check_run(aborted)[0])


def test_token_loops_conserved():
    run = play("A1")
    index = next(
        i for i, one in enumerate(run.timeline.launches)
        if one.record.num_passes and one.record.items[0].request_id == "prompt-0"
    )  # fmt: skip
    (item,) = run.timeline.launches[index].record.items
    broken = with_launch(run, index, items=(replace(item, num_rows=7),))
    assert broken_rules(broken) == {"token_loops_conserved"}
    assert "expected 128 token-loops of kind prompt, got 127" in str(check_run(broken)[0])


def test_no_compilation():
    run = play("A2")
    last = run.timeline.launches[-1]
    compiled = with_events(
        run, lambda event: replace(event, num_compilations=9) if event is last else event
    )
    assert broken_rules(compiled) == {"no_compilation"}
    assert broken_rules(replace(run, num_backend_compilations=1)) == {"no_compilation"}


def test_no_preemption():
    run = play("A1")
    launches = [
        one for one in run.timeline.launches
        if one.record.num_passes and one.record.items[0].request_id == "prompt-0"
    ]  # fmt: skip
    twice = []
    for event in run.events:
        twice.append(event)
        if event is launches[5]:
            twice.append(launches[5])
    rules = broken_rules(replace(run, events=tuple(twice)))
    assert rules == {"no_preemption", "token_loops_conserved"}


def test_no_wait_for_a_slot():
    crowded = replace(OPTIONS, max_num_seqs=3)
    workload = replace(WORKLOAD, injection_interval=2)
    run = play("A2", options=crowded, workload=workload)
    assert broken_rules(run) == {"no_kv_wait"}
    assert "4 requests at once, for 3 slots" in str(check_run(run)[0])


def test_no_wait_for_blocks():
    # Decoders of 47 positions take 48 blocks each; prompts of 32 take 32.
    scarce = replace(OPTIONS, num_blocks=2 * 48 + 32)
    assert not check_run(play("A2", options=scarce))
    workload = replace(WORKLOAD, injection_interval=2)
    run = play("A2", options=scarce, workload=workload)
    assert broken_rules(run) == {"no_kv_wait"}
    assert "need 160 KV blocks, of 128" in str(check_run(run)[0])


def test_no_decoder_ends_in_a_window():
    run = play("A2", workload=replace(WORKLOAD, output_tokens=18))
    assert broken_rules(run) == {"no_decoder_ends_in_a_window"}
    assert "decoder-0 ended while prompt-1 was under way" in str(check_run(run)[0])


def test_decoders_start_together():
    run = play("A2", workload=replace(WORKLOAD, num_decoders=3))
    assert broken_rules(run) == {"decoders_start_together"}
    assert "first tokens of 3 decoders came in 2 launches" in str(check_run(run)[0])


@pytest.mark.parametrize(
    ("point", "message"),
    [(6, "prompt-0 had not come at 6"), (10, "prompt-0 came at 8 committed tokens")],
)
def test_injected_by_progress(point, message):
    run = play("A1")
    other = replace(run, workload=replace(run.workload, first_injection=point))
    assert broken_rules(other) == {"injected_by_progress"}
    assert message in str(check_run(other)[0])


def test_the_mixed_arm_mixes_and_no_other_does():
    never = replace(play("A1"), arm=ARMS["A2"])
    assert broken_rules(never) == {"launches_are_the_arms"}
    assert "expected at least one launch with prompt and decode rows, got none" in str(
        check_run(never)[0]
    )
    always = replace(play("A2"), arm=ARMS["A1"])
    assert broken_rules(always) == {"launches_are_the_arms"}


def rules_of(runs):
    return {violation.rule for violation in check_runs(runs)}


def test_same_options(sound):
    other = replace(sound[3], options=replace(OPTIONS, attention_backend="another"))
    assert rules_of([*sound[:3], other, *sound[4:]]) == {"same_options"}
    other = replace(sound[3], workload=replace(WORKLOAD, seed=1))
    assert "same_options" in rules_of([*sound[:3], other, *sound[4:]])


def test_same_tokens_in_float32_and_a_count_of_them_in_bfloat16(sound):
    place = sound[2].place
    other = replace(play(sound[2].arm.name, salt="other"), place=place)
    mixed = [*sound[:2], other, *sound[3:]]
    assert rules_of(mixed) == {"same_tokens"}
    assert num_parted_requests(mixed) == 4
    loose = [replace(run, options=replace(run.options, dtype="bfloat16")) for run in mixed]
    assert rules_of(loose) == set()
    assert compare(loose).num_parted_requests == 4


def test_same_exit_depths(sound):
    traced = replace(WORKLOAD, traces=(TRACE, TRACE))
    other = replace(
        play(sound[2].arm.name, workload=traced), place=sound[2].place, workload=WORKLOAD
    )
    mixed = [*sound[:2], other, *sound[3:]]
    assert rules_of(mixed) >= {"same_exit_depths"}
    assert compare(mixed).num_parted_exits == 2

    def with_options(**changes):
        return [replace(run, options=replace(run.options, **changes)) for run in mixed]

    # Where every arm decides for itself, near ties part in bfloat16: they are counted instead.
    assert "same_exit_depths" in rules_of(with_options(dtype="bfloat16"))
    assert "same_exit_depths" in rules_of(with_options(exits="live"))
    live = with_options(dtype="bfloat16", exits="live")
    assert "same_exit_depths" not in rules_of(live)
    assert compare(live).num_parted_exits == 2


def test_arms_alternate(sound):
    names = [run.arm.name for run in sound[:10]]
    assert names == ["D0", "P0", "A0", "A1", "A2", "A2", "A1", "A0", "P0", "D0"]
    forward = [
        replace(run, place=replace(run.place, position=4 - run.place.position % 5 + 5))
        if (run.place.process, run.place.round) == (0, 1)
        else run
        for run in sound
    ]
    assert rules_of(forward) == {"arms_alternate"}
    without = [run for run in sound if (run.place.round, run.arm.name) != (1, "A1")]
    assert rules_of(without) == {"arms_alternate"}


def test_enough_pairs_and_processes():
    assert rules_of(rounds(counts=(2, 2))) == {"enough_pairs"}
    assert rules_of(rounds(counts=(5,))) == {"enough_pairs"}


def test_an_invalid_run_is_left_out_of_every_number(sound):
    worse = [
        replace(run, num_backend_compilations=3) if run.arm.name == "A2" else run for run in sound
    ]
    result = compare(worse)
    assert not result.is_valid
    assert "A2" not in result.arms
    assert "A2/A0" not in result.ratios
    assert result.ratios["A1/A0"]["itl_max"].count == 5


def test_every_rule_is_documented():
    page = DOCS.read_text()
    for rule in (all_requests_complete, *RUN_RULES, *SET_RULES):
        assert rule.__doc__
        assert f"| `{rule.__name__}` |" in page


def test_a_wedged_run_does_not_break_the_judge():
    run = play("A2")
    half = replace(run, events=run.events[: len(run.events) // 2])
    assert broken_rules(half) == {"all_requests_complete"}
    assert not compare([half]).is_valid
    assert any(isinstance(event, LaunchEvent) for event in half.events)
