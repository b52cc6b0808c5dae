"""Known durations give known numbers: every metric on runs whose launches take what we say.

On the stub a pass takes 1 s with decode rows alone and 2 s with prompt rows, the head behind it
0.125 s, and the host 0.125 s before each launch. P = 4; two decoders; prompts of 32 tokens in
chunks of 8; no launch runs ahead but where a test says so.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from stub_target import OPTIONS, WORKLOAD, play

from looped.bench.interference.arm_metrics import METRICS, measure
from looped.bench.interference.comparison import compare
from looped.bench.interference.validity import check_run
from looped.record.timeline import num_ended_rows, token_loops
from looped.sched import ItemKind

ALONE = 4 * 1.125 + 0.125
"""A gap with nothing else: four passes, each after 0.125 s of the host, and a head."""
THRESHOLD = 0.8
"""Of live exits: some tokens on the stub leave after two loops, some after three, some stay."""
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@pytest.fixture(scope="module")
def runs():
    return {name: play(name) for name in ("D0", "P0", "A0", "A1", "A2")}


@pytest.fixture(scope="module")
def numbers(runs):
    return {name: measure(run, runs["D0"]) for name, run in runs.items()}


def test_decoders_alone_have_one_gap(runs, numbers):
    assert {gap.seconds for gap in runs["D0"].gaps} == {ALONE}
    assert numbers["D0"]["itl_p50"] == numbers["D0"]["itl_max"] == numbers["D0"]["tpot"] == ALONE
    assert numbers["D0"]["stall_factor"] == 1
    assert numbers["D0"]["window_itl_p50"] is None
    assert numbers["D0"]["ttft_prompt"] is None


def test_mixed_gaps_are_passes_that_carry_prompt_rows(runs, numbers):
    # Four chunks, each four passes of 2 s beside the decode rows: four gaps of 4 * 2.125 + 0.125.
    assert {gap.seconds for gap in runs["A2"].window_gaps} == {4 * 2.125 + 0.125}
    assert len(runs["A2"].window_gaps) == 4 * WORKLOAD.num_decoders * WORKLOAD.num_prompts
    assert numbers["A2"]["window_itl_p50"] == 8.625
    assert numbers["A2"]["stall_factor"] == pytest.approx(8.625 / ALONE)
    assert numbers["A2"]["interference_per_prompt"] == pytest.approx(4 * (8.625 - ALONE))
    assert numbers["A2"]["prompt_depths_per_launch"] == 1
    assert numbers["A2"]["prompt_token_loops_per_gap"] == 4 * 8


def test_atomic_gaps_hold_whole_chunks(runs, numbers):
    # Between two tokens four decode passes, after each of them a chunk of four passes, and the
    # head behind the last of these.
    assert numbers["A0"]["window_itl_max"] == ALONE + 4 * (4 * 2 + 0.125) + 0.125
    assert numbers["A0"]["prompt_depths_per_launch"] == 4
    assert numbers["A0"]["prompt_token_loops_per_gap_max"] == 4 * 8 * 4


def test_separate_gaps_hold_single_passes(numbers):
    # One of the four passes after each decode pass; the head of the prompt is in the last gap.
    assert numbers["A1"]["window_itl_max"] == ALONE + 4 * 2.125 + 0.125
    assert numbers["A1"]["prompt_token_loops_per_gap_max"] == 4 * 8


def test_time_to_first_token_counts_from_the_arrival(runs, numbers):
    # Prompts alone: four chunks of four passes, then a head. (A launch of several passes would
    # pad eight rows to sixteen, so the shortcut does not apply.)
    assert numbers["P0"]["ttft_prompt"] == 16 * 2.125 + 0.125
    # Mixed: 16 passes of 2 s, and four heads of the decoders, the last of them its own as well.
    assert numbers["A2"]["ttft_prompt"] == 16 * 2.125 + 4 * 0.125


def test_rates_are_work_over_the_period(runs, numbers):
    run = runs["A2"]
    seconds = run.period.end - run.period.start
    num_tokens = 2 * (40 - 4) + 2
    assert numbers["A2"]["output_tokens_per_second"] == pytest.approx(num_tokens / seconds)
    prompt_loops = 2 * 32 * 4
    assert numbers["A2"]["prompt_token_loops_per_second"] == pytest.approx(prompt_loops / seconds)
    decode_loops = 2 * (40 - 4) * 4
    assert numbers["A2"]["decode_token_loops_per_second"] == pytest.approx(decode_loops / seconds)
    windows = sum(window.end - window.start for window in run.windows)
    in_windows = numbers["A2"]["window_prompt_token_loops_per_second"]
    assert in_windows == pytest.approx(prompt_loops / windows)
    alone = runs["D0"].period
    assert numbers["A2"]["seconds_per_prompt"] == pytest.approx(
        (seconds - (alone.end - alone.start)) / 2
    )


def test_launches_and_readbacks_per_token(runs, numbers):
    # Alone, four launches bring two tokens, and one of them is read.
    assert numbers["D0"]["launches_per_token"] == 2.0
    assert numbers["D0"]["readbacks_per_token"] == 0.5
    assert (
        numbers["D0"]["host_wait_per_readback"] == numbers["D0"]["host_wait_with_tokens"] == 1.125
    )
    assert numbers["D0"]["host_wait_without_tokens"] is None
    assert numbers["D0"]["host_wait_per_token"] == (3 * 1.0 + 1.125) / 2
    assert numbers["D0"]["host_gap"] == 0.125
    assert numbers["D0"]["later_launches_per_readback"] == 0
    assert numbers["D0"]["ended_rows_per_token"] == 0


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_device_with_launches_ahead_never_waits_for_the_host(run_ahead):
    run = play("D0", options=replace(OPTIONS, run_ahead=run_ahead))
    numbers = measure(run, run)
    assert numbers["itl_p50"] == 4 * 1.0 + 0.125
    assert numbers["launches_per_token"] == 2.0
    assert numbers["readbacks_per_token"] == 0.5
    # At the very end nothing is left to dispatch.
    assert run_ahead - 0.1 < numbers["later_launches_per_readback"] < run_ahead
    assert numbers["host_gap"] == 0.125
    # What the host does meanwhile is no wait.
    assert numbers["host_wait_with_tokens"] == pytest.approx(1.125 - 0.125, abs=0.01)


def test_rows_that_had_ended_are_no_work():
    """Exits that only the device knows: the host learns too late that a decoder has its tokens."""
    workload = replace(WORKLOAD, output_tokens=20)
    options = replace(OPTIONS, run_ahead=2, exit_threshold=THRESHOLD, exits="live")
    early = play("D0", workload=workload, options=options)
    assert not [str(violation) for violation in check_run(early)]
    numbers = measure(early, early)
    num_ended = sum(num_ended_rows(launch.record) for launch in early.timeline.launches)
    assert num_ended > 0
    assert numbers["ended_rows_per_token"] > 0
    assert 90 < numbers["real_rows"] < 100
    assert numbers["host_wait_without_tokens"] > 0
    depths = [one.token.exit_depth for tokens in early.timeline.tokens.values() for one in tokens]
    assert min(depths) < 4
    loops = sum(token_loops(launch.record, ItemKind.DECODE) for launch in early.timeline.launches)
    assert loops == sum(depths) - 2 * 4


def test_rows_and_budget(runs, numbers):
    assert numbers["A2"]["real_rows"] == 100
    # 16 launches a prompt of 8 prompt rows and 2 decode rows, in a budget of 16.
    assert numbers["A2"]["window_budget_fill"] == 100 * 10 / 16
    assert numbers["A2"]["mixed_launches"] == 32
    assert numbers["A1"]["mixed_launches"] == numbers["A0"]["mixed_launches"] == 0


def test_bystanders_are_measured_apart():
    run = play("A2", workload=replace(WORKLOAD, bystander_tokens=4))
    numbers = measure(run, play("D0", workload=run.workload))
    # 8 + 4 + 2 rows fit the budget: it rides with the first chunk, and its head is the first.
    assert numbers["ttft_bystander"] == 4 * 2.125 + 0.125
    assert numbers["ttft_prompt"] > numbers["ttft_bystander"]


def test_the_slow_tail_is_in_the_pooled_p99_and_not_in_an_average_of_percentiles():
    # One run of six is three times slower; over all gaps pooled the p99 is the slow run's gap,
    # while the mean of the runs' own p99 would lie far below.
    workload = replace(WORKLOAD, output_tokens=130)
    runs = []
    for index in range(6):
        slow = 3 if index == 5 else 1
        for position, name in enumerate(("D0", "P0", "A0", "A1", "A2")):
            runs.append(
                play(
                    name,
                    workload=workload,
                    place=(0, index, position),
                    seconds=lambda batch, slow=slow: slow * 0.5 * batch.num_passes,
                )
            )
    pooled = compare(runs).arms["D0"].itl
    assert pooled.count > 1000
    assert pooled.p99 == pytest.approx(4 * (3 * 0.5 + 0.125))
    assert pooled.p50 == pytest.approx(4 * (0.5 + 0.125))


def test_every_metric_is_defined_and_documented():
    page = " ".join(DOCS.read_text().split())
    for metric in METRICS.values():
        assert metric.definition.endswith("."), metric.name
        assert f"| `{metric.name}` | {metric.unit} | {metric.definition} |" in page, metric.name
