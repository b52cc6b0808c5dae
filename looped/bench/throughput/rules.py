"""Whether runs of the throughput benchmark may say anything; a broken rule makes it invalid."""

from collections.abc import Callable, Iterator, Sequence

from looped.engine.events import EndEvent, LaunchEvent, RequestEvent
from looped.measure.violation import Violation
from looped.sched import RowStatus

from ..engine_rules import ENGINE_RULES, alternation, broken_rules, same_tokens
from .runs import BASE_THRESHOLD, ThroughputRun

MIN_ROUNDS = 5


def check_throughput_runs(
    runs: Sequence[ThroughputRun], thresholds: Sequence[float]
) -> list[Violation]:
    """Every broken rule of one point: of each run alone, then of all together."""
    found = [violation for run in runs for violation in check_throughput_run(run)]
    for threshold in thresholds:
        equals = [run for run in runs if run.threshold == threshold]
        for rule in (same_tokens, enough_rounds):
            found += [Violation(rule.__name__, where, message) for where, message in rule(equals)]
    labels = [f"{threshold:g}" for threshold in thresholds]
    order = alternation(runs, lambda run: f"{run.threshold:g}", labels)
    found += [Violation("thresholds_alternate", where, message) for where, message in order]
    return found


def check_throughput_run(run: ThroughputRun) -> list[Violation]:
    """Every broken rule of one run."""
    return broken_rules(run, RUN_RULES)


def concurrency_held(run: ThroughputRun) -> Iterator[str]:
    """With every launch, `concurrency` requests are under way, or all that are left."""
    num_come = num_ended = 0
    for event in run.events:
        match event:
            case RequestEvent():
                num_come += 1
            case EndEvent():
                num_ended += 1
            case LaunchEvent():
                expected = min(run.loop.concurrency, run.loop.num_requests - num_ended)
                if num_come - num_ended != expected:
                    yield (
                        f"expected {expected} requests under way in launch {event.record.index}, "
                        f"got {num_come - num_ended}"
                    )
                    return


def every_loop_at_threshold_1(run: ThroughputRun) -> Iterator[str]:
    """At threshold 1 every token runs every loop, and no head looks at a row that stays."""
    if run.threshold < BASE_THRESHOLD:
        return
    num_early = sum(loops < run.options.num_planes for loops in run.decode_loops)
    if num_early:
        yield f"{num_early} tokens left early"
    num_stayed = sum(
        item.status in (RowStatus.STAYED, RowStatus.LEAVES_NEXT)
        for launch in run.timeline.launches
        for item in launch.record.items
    )
    if num_stayed:
        yield f"heads looked at {num_stayed} rows that stayed"


def enough_rounds(runs: Sequence[ThroughputRun]) -> Iterator[tuple[str, str]]:
    """At least 5 rounds."""
    if len(runs) < MIN_ROUNDS:
        yield "all", f"expected at least {MIN_ROUNDS} rounds, got {len(runs)}"


RUN_RULES: tuple[Callable[[ThroughputRun], Iterator[str]], ...] = (
    *ENGINE_RULES,
    concurrency_held,
    every_loop_at_threshold_1,
)
"""Rules about one run, after `all_requests_complete`."""
