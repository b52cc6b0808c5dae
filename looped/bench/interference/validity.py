"""Whether a run may say anything: rules that its events must keep, and those of a set of runs.

A run that breaks a rule is left out of every number, and a benchmark with a broken rule is invalid
and says which. Rules that hold for any benchmark's runs are in `engine_rules`.
"""

from collections.abc import Callable, Iterator, Sequence

from looped.engine.events import LaunchEvent, RequestEvent
from looped.measure.violation import Violation

from ..arms import ARMS
from ..engine_rules import (
    ENGINE_RULES,
    all_requests_complete,
    alternation,
    broken_rules,
    differences,
    exit_depths_of,
    same_tokens,
    token_ids_of,
)
from ..runs import Run
from ..workload import DECODER, PROMPT, kind_of

MIN_PAIRS = 5
MIN_PROCESSES = 2


def check_runs(runs: Sequence[Run]) -> list[Violation]:
    """Every broken rule of a benchmark: of each run alone, then of all together."""
    found = [violation for run in runs for violation in check_run(run)]
    for rule in SET_RULES:
        found += [Violation(rule.__name__, where, message) for where, message in rule(runs)]
    return found


def check_run(run: Run) -> list[Violation]:
    """Every broken rule of one run. A run without its tokens is not asked for more."""
    return broken_rules(run, RUN_RULES)


def no_decoder_ends_in_a_window(run: Run) -> Iterator[str]:
    """All decoders decode through every window, so that its load is the same in every arm."""
    for name in run.names(DECODER):
        end = run.timeline.ends[name].time
        for index, window in enumerate(run.windows):
            if window.start <= end <= window.end:
                yield f"{name[0]} ended while {PROMPT}-{index} was under way; raise output_tokens"


def decoders_start_together(run: Run) -> Iterator[str]:
    """One launch brings every decoder's first token.

    Otherwise the decoders stand at different depths for good, in another way in each arm, and an
    arm pays for its start in every later launch.
    """
    names = run.names(DECODER)
    times = {run.timeline.first_token_time(name) for name in names}
    if len(times) > 1:
        yield (
            f"the first tokens of {len(names)} decoders came in {len(times)} launches; lower "
            "decoder_prompt_tokens until all their prompts fit the budget"
        )


def injected_by_progress(run: Run) -> Iterator[str]:
    """Every prompt came as soon as the decoders had committed its k + i * g tokens, and no sooner.

    That is after the launch that brought the last of them, and before the next one was applied.
    """
    if not (run.arm.has_decoders and run.arm.has_prompts):
        return
    num_committed = num_injected = 0
    for event in run.events:
        is_due = (
            num_injected < run.workload.num_prompts
            and num_committed >= run.workload.injection_point(num_injected)
        )
        if isinstance(event, RequestEvent) and kind_of(event.request_id) == PROMPT:
            if not is_due or event.request_id != f"{PROMPT}-{num_injected}":
                yield f"{event.request_id} came at {num_committed} committed tokens, out of turn"
                return
            num_injected += 1
        elif isinstance(event, LaunchEvent):
            if is_due:
                yield f"{PROMPT}-{num_injected} had not come at {num_committed} committed tokens"
                return
            num_committed += sum(kind_of(token.request_id) == DECODER for token in event.tokens)


def launches_are_the_arms(run: Run) -> Iterator[str]:
    """A2 mixes prompt and decode rows in at least one launch; the other arms never do."""
    num_mixed = sum(launch.record.is_mixed for launch in run.timeline.launches)
    is_mixing = run.arm.policy == "mixed" and run.arm.has_decoders and run.arm.has_prompts
    if is_mixing and not num_mixed:
        yield "expected at least one launch with prompt and decode rows, got none"
    if num_mixed and run.arm.policy != "mixed":
        yield f"policy {run.arm.policy} mixed prompt and decode rows in {num_mixed} launches"


RUN_RULES: tuple[Callable[[Run], Iterator[str]], ...] = (
    *ENGINE_RULES,
    no_decoder_ends_in_a_window,
    decoders_start_together,
    injected_by_progress,
    launches_are_the_arms,
)
"""Rules about one run, after `all_requests_complete`."""


def same_options(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """One budget, number of sequences, chunk, pool, type, kernel, run_ahead and workload."""
    for run in runs[1:]:
        if run.options != runs[0].options:
            yield str(run), f"expected {runs[0].options}, got {run.options}"
        if run.workload != runs[0].workload:
            yield str(run), "its workload differs from the first run's"


def same_exit_depths(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Exit depths of every request are equal in all runs, in float32 or where they are replayed.

    Where every arm decides for itself in bfloat16, gates part as tokens do; then the arms' work is
    not quite the same, and `num_parted_exits` counts the requests.
    """
    if not runs or (runs[0].options.dtype != "float32" and runs[0].options.exits == "live"):
        return
    yield from differences(runs, "exit depths", exit_depths_of)


def arms_alternate(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Every round has each arm once, and each round of a process reverses the one before: ABBA."""
    return alternation(runs, lambda run: run.arm.name, tuple(ARMS))


def enough_pairs(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """At least 5 pairs (rounds over all processes), in at least 2 processes."""
    rounds = {(run.place.process, run.place.round) for run in runs}
    processes = {run.place.process for run in runs}
    if len(rounds) < MIN_PAIRS:
        yield "all", f"expected at least {MIN_PAIRS} pairs, got {len(rounds)}"
    if len(processes) < MIN_PROCESSES:
        yield "all", f"expected at least {MIN_PROCESSES} processes, got {len(processes)}"


SET_RULES = (same_options, same_tokens, same_exit_depths, arms_alternate, enough_pairs)
"""Rules about all runs together."""


def num_parted_requests(runs: Sequence[Run]) -> int:
    """Requests whose token ids differ between runs, in any type."""
    return len({where for where, _ in differences(runs, "token ids", token_ids_of, by_name=True)})


def num_parted_exits(runs: Sequence[Run]) -> int:
    """Requests whose exit depths differ between runs, in any type."""
    parted = differences(runs, "exit depths", exit_depths_of, by_name=True)
    return len({where for where, _ in parted})


__all__ = [
    "all_requests_complete",
    "check_run",
    "check_runs",
    "num_parted_exits",
    "num_parted_requests",
]
