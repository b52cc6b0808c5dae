"""The throughput benchmark: known durations give known figures, and broken rules are named.

On the stub a pass takes 1 s with decode rows alone and 2 s with prompt rows, the head behind it
0.125 s, and the host 0.125 s before each launch. P = 4.
"""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import looped
from stub_executor import VOCAB_SIZE, signal_of
from stub_target import NUM_PLANES, OPTIONS, StubTarget

from looped.bench.model_maker import SHAPES
from looped.bench.runs import Place
from looped.bench.throughput.benchmark import round_of
from looped.bench.throughput.closed_loop import ClosedLoop, drive_closed_loop
from looped.bench.throughput.point import ThroughputPoint
from looped.bench.throughput.report import to_markdown
from looped.bench.throughput.rules import MIN_ROUNDS, RUN_RULES, check_throughput_run
from looped.bench.throughput.runs import THROUGHPUT_METRICS, ThroughputRun
from looped.bench.throughput.summary import summarise_point
from looped.engine.events import EndEvent
from looped.errors import LoopedError, UsageError
from looped.measure.flop_bound import ParameterCounts

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
LOOP = ClosedLoop(
    num_requests=4, concurrency=2, prompt_tokens=8, output_tokens=3, vocab_size=VOCAB_SIZE
)
ONE_BY_ONE = replace(LOOP, num_requests=3, concurrency=1, output_tokens=12)
PARAMETERS = ParameterCounts(head=100, recurrent=1000)
THRESHOLD = 0.6


def play(loop, place=(0, 0), salt=""):
    """One closed loop on the stub."""
    events = []
    drive_closed_loop(StubTarget(OPTIONS, "mixed", events.append, salt=salt), loop)
    return ThroughputRun(
        place=Place(process=0, round=place[0], position=place[1]), options=OPTIONS, loop=loop,
        parameters=PARAMETERS, events=tuple(events),
    )  # fmt: skip


def rounds(loop, thresholds=(1.0, THRESHOLD), count=MIN_ROUNDS):
    runs = []
    for index in range(count):
        for threshold in round_of(thresholds, index):
            runs.append(play(loop.at(threshold), (index, len(runs))))
    return runs


def point_of(loop, thresholds=(1.0, THRESHOLD)):
    return ThroughputPoint(
        model="stub", dtype=None, kv_cache_dtype=None, attention_backend="stub", num_planes=4,
        budget=16, chunk_size=8, max_num_seqs=6, block_size=4, policy="mixed",
        thresholds=thresholds, loop=loop,
    )  # fmt: skip


def numbers(run, baseline):
    return {name: metric.measure(run, baseline) for name, metric in THROUGHPUT_METRICS.items()}


def loops_of(request_id, index):
    """Loops of a token on the stub: 2 or 3 if that signal reaches the threshold, else 4."""
    seed = zlib.crc32(request_id.encode())
    return next((r for r in (2, 3) if signal_of(seed, index, r) >= THRESHOLD), NUM_PLANES)


def test_known_durations_give_known_figures():
    run = play(LOOP)
    assert not check_throughput_run(run)
    # Twice the same: two prompts in one launch of four passes and a head, and two tokens of four
    # passes and a head for both requests.
    first, token = 0.125 + 4 * 2 + 0.125, 4 * 1.125 + 0.125
    seconds = 2 * (first + 2 * token)
    found = numbers(run, run)
    assert run.seconds == seconds
    assert found["output_tokens_per_second"] == 12 / seconds
    assert found["prompt_tokens_per_second"] == 32 / seconds
    assert found["total_tokens_per_second"] == 44 / seconds
    assert found["requests_per_second"] == 4 / seconds
    assert found["ttft_p50"] == first
    assert found["tpot_p50"] == found["itl_p50"] == found["itl_max"] == token
    assert found["mean_decode_loops"] == found["mean_loops"] == 4
    assert found["launches_per_token"] == 2 * (1 + 2 * 4) / 12
    assert found["readbacks_per_token"] == 2 * 3 / 12
    assert found["speed_up"] == found["flop_bound"] == found["work_bound"] == 1
    assert found["flop_bound_share"] is None
    assert found["work_bound_share"] is None


def test_early_exit_is_measured_beside_its_bounds():
    base, run = play(ONE_BY_ONE), play(ONE_BY_ONE.at(THRESHOLD))
    assert not check_throughput_run(run)
    depths = [loops_of(f"request-{i}", index) for i in range(3) for index in range(1, 12)]
    assert min(depths) < 4 == max(depths)
    prompt = 4 * 2.125 + 0.125
    assert base.seconds == 3 * prompt + 33 * (4 * 1.125 + 0.125)
    # A head behind every pass after which a token may leave: the second, and those after it.
    assert run.seconds == 3 * prompt + sum(depth * 1.125 + (depth - 1) * 0.125 for depth in depths)
    found = numbers(run, base)
    mean = sum(depths) / 33
    assert found["mean_decode_loops"] == mean
    assert found["mean_loops"] == (12 + sum(depths)) / 36
    speed_up, bound = base.seconds / run.seconds, 4100 / (100 + 1000 * mean)
    assert found["speed_up"] == speed_up
    assert found["flop_bound"] == pytest.approx(bound)
    assert found["flop_bound_share"] == pytest.approx((speed_up - 1) / (bound - 1))
    assert found["flop_bound_ratio"] == pytest.approx(speed_up / bound)
    prompts = 3 * 8 * 4
    work = (3600 + 1000 * (prompts + 33 * 4)) / (3600 + 1000 * (prompts + sum(depths)))
    assert found["work_bound"] == pytest.approx(work)
    assert found["work_bound_share"] == pytest.approx((speed_up - 1) / (work - 1))


def test_the_bound_of_the_released_shape():
    counts = ParameterCounts.of(SHAPES["1.4b"])
    assert counts.head == 49_152 * 2048
    # All parameters but the head and the embedding, which has as many.
    assert counts.recurrent == 1_434_652_673 - 2 * counts.head
    ratio = counts.head / counts.recurrent
    assert ratio == pytest.approx(0.0816, abs=5e-5)
    assert counts.speed_up_bound(1, 4, 2) == pytest.approx((ratio + 4) / (ratio + 2))
    assert counts.speed_up_bound(1, 4, 2) == pytest.approx(1.9608, abs=5e-5)


def test_thresholds_stand_beside_each_other():
    result = summarise_point(point_of(ONE_BY_ONE), rounds(ONE_BY_ONE))
    assert result.violations == []
    assert result.num_rounds == MIN_ROUNDS
    early = result.thresholds[THRESHOLD]
    assert early.ratios["output_tokens_per_second"].median == pytest.approx(
        early.metrics["speed_up"].median
    )
    assert early.metrics["speed_up"].median > 1
    assert early.itl.count == MIN_ROUNDS * 33
    page = to_markdown([result], {"date": "today"})
    assert "| threshold | 1 | 0.6 |" in page
    assert "Of the FLOP bound" in page
    assert "INVALID" not in page


def test_where_no_token_leaves_early_there_is_no_share():
    loop = replace(LOOP, output_tokens=1)
    page = to_markdown([summarise_point(point_of(loop), rounds(loop))], {})
    assert "Threshold 0.6: no token left early, so the bound is 1" in page


def broken(run):
    return {violation.rule for violation in check_throughput_run(run)}


def test_broken_rules_are_named():
    run = play(LOOP)
    ends = [event for event in run.events if isinstance(event, EndEvent)]
    without = tuple(event for event in run.events if event is not ends[-1])
    assert broken(replace(run, events=without)) == {"all_requests_complete"}
    assert broken(replace(run, num_backend_compilations=1)) == {"no_compilation"}
    assert broken(replace(run, loop=replace(LOOP, concurrency=3))) == {"concurrency_held"}
    early = play(ONE_BY_ONE.at(THRESHOLD))
    assert broken(replace(early, loop=ONE_BY_ONE)) == {"every_loop_at_threshold_1"}
    tight = replace(run, options=replace(OPTIONS, num_blocks=7))
    assert broken(tight) == {"no_kv_wait"}


def test_rounds_that_do_not_alternate_or_are_few_are_named():
    runs = rounds(LOOP)
    first, second = runs[0], runs[1]
    swapped = [replace(first, place=second.place), replace(second, place=first.place), *runs[2:]]
    result = summarise_point(point_of(LOOP), swapped)
    assert {violation.rule for violation in result.violations} == {"thresholds_alternate"}
    result = summarise_point(point_of(LOOP), runs[:-2])
    assert {violation.rule for violation in result.violations} == {"enough_rounds"}
    assert "**INVALID**: 2 broken rules." in to_markdown([result], {})


def test_other_tokens_at_the_same_threshold_are_named_in_float32():
    runs = rounds(LOOP)
    runs[2] = play(runs[2].loop, (1, 2), salt="other")
    result = summarise_point(point_of(LOOP), runs)
    assert {violation.rule for violation in result.violations} == {"same_tokens"}
    loose = [replace(run, options=replace(OPTIONS, dtype="bfloat16")) for run in runs]
    assert summarise_point(point_of(LOOP), loose).is_valid


class FailingBench:
    """Plays on the stub; the second point fails."""

    def __init__(self, point, loaded, compilations):
        self.point = point

    def play_rounds(self, num_rounds, on_run):
        if self.point.loop.prompt_tokens != LOOP.prompt_tokens:
            raise LoopedError("no memory")
        loop = replace(self.point.loop, vocab_size=LOOP.vocab_size)  # the stub's
        return rounds(loop, self.point.thresholds, num_rounds)


def test_an_error_late_in_a_sweep_keeps_what_was_measured(monkeypatch, tmp_path, tiny_folder):
    monkeypatch.setattr("looped.bench.throughput.benchmark.ThroughputBench", FailingBench)
    out = tmp_path / "results"
    done = looped(
        "bench", "throughput", "--model", tiny_folder, "--out", out, "--rounds", MIN_ROUNDS,
        "--prompt-tokens", 8, "--prompt-tokens", 9, "--output-tokens", 3, "--concurrency", 2,
        "--num-requests", 4, "--threshold", THRESHOLD, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "no memory" in done.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["is_complete"] is False
    assert [point["point"]["loop"]["prompt_tokens"] for point in result["points"]] == [8]
    assert "INCOMPLETE" in (out / "result.md").read_text()
    assert len(list(out.glob("prompt8-*/*.jsonl.gz"))) == 2 * MIN_ROUNDS
    assert json.loads((out / "benchmark.json").read_text())["benchmark"] == "throughput"


def test_a_profile_that_fails_leaves_the_results_as_they_are(monkeypatch, tmp_path, tiny_folder):
    def fail(self, folder):
        raise LoopedError("no profile")

    monkeypatch.setattr("looped.bench.throughput.benchmark.ThroughputBench", FailingBench)
    monkeypatch.setattr("looped.bench.throughput.benchmark.ThroughputBenchmark.profile", fail)
    out = tmp_path / "results"
    done = looped(
        "bench", "throughput", "--model", tiny_folder, "--out", out, "--rounds", MIN_ROUNDS,
        "--prompt-tokens", 8, "--output-tokens", 3, "--concurrency", 2, "--num-requests", 4,
        "--profile", tmp_path / "profile", check=False,
    )  # fmt: skip
    assert (done.returncode, "no profile" in done.stderr) == (1, True)
    assert done.stdout == (out / "result.md").read_text()
    assert json.loads((out / "result.json").read_text())["is_complete"]


def test_an_invalid_run_is_left_out():
    runs = rounds(LOOP)
    result = summarise_point(
        point_of(LOOP), [replace(runs[0], num_backend_compilations=1), *runs[1:]]
    )
    assert result.num_rounds == MIN_ROUNDS - 1
    assert not result.is_valid


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_requests": 1}, "at least the concurrency: 1 < 2; try --num-requests 4"),
        ({"thresholds": [0.5, 0.5]}, "thresholds must differ"),
        ({"policy": "fast"}, "policy must be one of mixed, .*slack"),
        ({"policy": "slack"}, "policy slack needs target=VALUE, costs=VALUE"),
        ({"policy": "wavefront", "policy_options": (("window", "no"),)}, "a whole number"),
        ({"policy_options": (("window", "2"),)}, "policy mixed takes no options"),
        ({"chunk_size": 16}, "try --budget 17"),
        ({"concurrency": 17}, r"4 \+ 17 - 1 > 16; try --budget 20"),
    ],
)
def test_contradictions_are_refused(changes, message):
    options = {
        "model": "m", "dtype": None, "kv_cache_dtype": None, "attention_backend": "auto",
        "num_planes": 4, "policy": "mixed", "thresholds": [0.5], "concurrency": 2,
        "num_requests": None, "budget": 16, "chunk_size": None, "block_size": 4,
        "loop": {"prompt_tokens": 4, "output_tokens": 4, "vocab_size": 9},
    }  # fmt: skip
    assert ThroughputPoint.derive(**options).thresholds == (1.0, 0.5)
    with pytest.raises(UsageError, match=message):
        ThroughputPoint.derive(**options | changes)


def test_a_policy_that_takes_options_can_be_measured():
    point = replace(
        point_of(LOOP), policy="wavefront", policy_options=(("window", "2"),),
        attention_backend="auto",
    )  # fmt: skip
    config = point.engine_config(point.policy)
    assert config.resolved_policy.max_window == 2
    assert point.policy_label == "wavefront window=2"


def test_every_metric_and_rule_is_documented():
    text = DOCS.read_text()
    for metric in THROUGHPUT_METRICS.values():
        unit = metric.unit
        assert f"| `{metric.name}` | {unit} | {metric.definition} |" in text
    for rule in (*RUN_RULES, *("all_requests_complete", "thresholds_alternate", "enough_rounds")):
        assert f"`{rule if isinstance(rule, str) else rule.__name__}`" in text


@pytest.mark.slow
def test_a_real_run_is_valid_and_its_files_are_written(tiny_folder, tmp_path):
    out = tmp_path / "results"
    command = (
        "bench", "throughput", "--model", tiny_folder, "--prompt-tokens", 12, "--output-tokens", 8,
        "--concurrency", 3, "--budget", 16, "--chunk", 8, "--threshold", 0.5, "--rounds", 5,
        "--dtype", "float32", "--layers", "scanned",
    )  # fmt: skip
    profile = tmp_path / "profile"
    done = looped(*command, "--out", out, "--json", "--profile", profile)
    values = json.loads(done.stdout)
    assert values == json.loads((out / "result.json").read_text())
    assert values["is_valid"] is True
    (point,) = values["points"]
    assert point["point"]["layers"] == "scanned"
    assert point["thresholds"]["1"]["metrics"]["mean_decode_loops"]["median"] == 4
    assert 2 <= point["thresholds"]["0.5"]["metrics"]["mean_decode_loops"]["median"] < 4
    assert "INVALID" not in (out / "result.md").read_text()
    assert len(list(out.glob("*/round*-threshold*.jsonl.gz"))) == 10
    assert {trace.relative_to(profile).parts[1] for trace in profile.rglob("*.xplane.pb")} == {
        "threshold1", "threshold0.5",
    }  # fmt: skip
    refused = looped(*command, "--out", out, check=False)
    assert (refused.returncode, "choose another name" in refused.stderr) == (2, True)
