"""Whether a run may say anything: rules that its events must keep, and those of a set of runs.

A run that breaks a rule is left out of every number, and a benchmark with a broken rule is invalid
and says which. The rules look at events alone; they do not ask the engine.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from looped.launch_events import EndEvent, LaunchEvent, RequestEvent
from looped.sched import FinishReason, ItemKind
from looped.timeline import Name, item_depths

from .arms import ARMS
from .runs import Run
from .workload import DECODER, PROMPT, kind_of

MIN_PAIRS = 5
MIN_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    rule: str
    run: str
    """Which run, or `all` for a rule about the set of them."""
    message: str
    """Expected, and got."""

    def __str__(self) -> str:
        return f"{self.rule}, {self.run}: {self.message}"


def check_runs(runs: Sequence[Run]) -> list[Violation]:
    """Every broken rule of a benchmark: of each run by itself, then of all together."""
    found = [violation for run in runs for violation in check_run(run)]
    for rule in SET_RULES:
        found += [Violation(rule.__name__, where, message) for where, message in rule(runs)]
    return found


def check_run(run: Run) -> list[Violation]:
    """Every broken rule of one run. A run without its tokens is not asked for more."""
    incomplete = list(_violations(run, all_requests_complete))
    if incomplete:
        return incomplete
    return [violation for rule in RUN_RULES for violation in _violations(run, rule)]


def _violations(run: Run, rule: Callable[[Run], Iterator[str]]) -> Iterator[Violation]:
    return (Violation(rule.__name__, str(run), message) for message in rule(run))


def all_requests_complete(run: Run) -> Iterator[str]:
    """Every request of the arm arrived and ended with all its tokens, for reason `length`."""
    timeline = run.timeline
    for item in run.items:
        name = item.request_id, 0
        end, num_tokens = timeline.ends.get(name), len(timeline.tokens.get(name, ()))
        if name not in timeline.requests:
            yield f"{item.request_id} never arrived"
        elif end is None:
            yield f"{item.request_id} never ended"
        elif end.reason is not FinishReason.LENGTH or num_tokens != item.max_tokens:
            yield (
                f"{item.request_id}: expected {item.max_tokens} tokens and reason length, got "
                f"{num_tokens} and {end.reason}"
            )


def token_loops_conserved(run: Run) -> Iterator[str]:
    """Rows times passes of every request are what its tokens need: neither more nor less.

    A prompt of n tokens needs n * P; output tokens need their exit depths, but for the first, which
    the prompt brings.
    """
    done: Counter[tuple[Name, ItemKind]] = Counter()
    for launch in run.timeline.launches:
        for item in launch.record.items:
            name = item.request_id, item.sample_index
            done[name, item.kind] += item.num_rows * launch.record.num_passes
    for work in run.items:
        name = work.request_id, 0
        depths = [visible.token.exit_depth for visible in run.timeline.tokens[name]]
        for kind, expected in (
            (ItemKind.PROMPT, len(work.prompt_token_ids) * run.options.num_planes),
            (ItemKind.DECODE, sum(depths[1:])),
        ):
            if done[name, kind] != expected:
                yield (
                    f"{work.request_id}: expected {expected} token-loops of kind "
                    f"{kind.name.lower()}, got {done[name, kind]}"
                )


def no_compilation(run: Run) -> Iterator[str]:
    """Nothing was compiled between the first launch and the last."""
    counts = [launch.num_compilations for launch in run.timeline.launches]
    if counts[-1] != counts[0]:
        yield f"the engine compiled {counts[-1] - counts[0]} steps"
    if run.num_backend_compilations:
        yield f"JAX compiled {run.num_backend_compilations} times"


def no_preemption(run: Run) -> Iterator[str]:
    """No position of a request ran a depth twice: nothing was thrown away and done again."""
    done: dict[tuple[Name, int], int] = defaultdict(int)
    for launch in run.timeline.launches:
        for item in launch.record.items:
            name = item.request_id, item.sample_index
            for depth in item_depths(launch.record, item):
                if item.first_position < done[name, depth]:
                    yield (
                        f"{item.request_id}: position {item.first_position} ran depth {depth} a "
                        "second time"
                    )
                    return
                done[name, depth] = item.first_position + item.num_rows


def no_kv_wait(run: Run) -> Iterator[str]:
    """Slots and KV blocks sufficed for all requests present at once, so none had to wait.

    A request counts from its arrival to its end, with its whole capacity: P * ceil((prompt +
    output - 1) / block size) blocks.
    """
    options = run.options
    blocks: dict[Name, int] = {}
    for event in run.events:
        match event:
            case RequestEvent():
                positions = event.num_prompt_tokens + event.max_tokens - 1
                needed = options.num_planes * -(-positions // options.block_size)
                blocks[event.request_id, event.sample_index] = needed
            case EndEvent():
                blocks.pop((event.request_id, event.sample_index), None)
        if len(blocks) > options.max_num_seqs:
            yield f"{len(blocks)} requests at once, for {options.max_num_seqs} slots"
            return
        if sum(blocks.values()) > options.num_blocks:
            yield (
                f"requests present at once need {sum(blocks.values())} KV blocks, of "
                f"{options.num_blocks}"
            )
            return


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

    That is after the launch that brought the last of them, and before the next was scheduled.
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


RUN_RULES = (
    token_loops_conserved,
    no_compilation,
    no_preemption,
    no_kv_wait,
    no_decoder_ends_in_a_window,
    decoders_start_together,
    injected_by_progress,
    launches_are_the_arms,
)
"""Rules about one run, after `all_requests_complete`."""


def same_options(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """One budget, number of sequences, chunk, pool, type, kernel, read-back rule and workload."""
    for run in runs[1:]:
        if run.options != runs[0].options:
            yield str(run), f"expected {runs[0].options}, got {run.options}"
        if run.workload != runs[0].workload:
            yield str(run), "its workload differs from the first run's"


def same_tokens(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Token ids of every request are equal in all runs, in float32.

    In bfloat16 a row's bits depend on its bucket, so near ties may part; as lengths and exit depths
    are fixed, the work stays the same, and `num_parted_requests` counts them instead.
    """
    if runs and runs[0].options.dtype == "float32":
        yield from _differences(runs, "token ids", _token_ids)


def same_exit_depths(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Exit depths of every request are equal in all runs."""
    yield from _differences(runs, "exit depths", _exit_depths)


def arms_alternate(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Every round has each arm once, and each round of a process reverses the one before: ABBA."""
    orders: dict[tuple[int, int], list[str]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.place.process, run.place.position)):
        orders[run.place.process, run.place.round].append(run.arm.name)
    for (process, index), order in orders.items():
        if sorted(order) != sorted(ARMS):
            yield (
                f"process {process}, round {index}",
                f"expected each of {', '.join(ARMS)} once, got {', '.join(order)}",
            )
    for (place, order), (next_place, next_order) in pairwise(sorted(orders.items())):
        if place[0] == next_place[0] and next_order != order[::-1]:
            yield (
                f"process {next_place[0]}, round {next_place[1]}",
                f"expected the arms in the order {', '.join(order[::-1])}, got "
                f"{', '.join(next_order)}",
            )


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
    return len({where for where, _ in _differences(runs, "token ids", _token_ids, by_name=True)})


def _token_ids(run: Run, name: Name) -> list[int]:
    return [visible.token.token_id for visible in run.timeline.tokens.get(name, ())]


def _exit_depths(run: Run, name: Name) -> list[int]:
    return [visible.token.exit_depth for visible in run.timeline.tokens.get(name, ())]


def _differences(
    runs: Sequence[Run],
    what: str,
    read: Callable[[Run, Name], list[int]],
    *,
    by_name: bool = False,
) -> Iterator[tuple[str, str]]:
    """Requests that do not have what the first run with that request has."""
    first: dict[Name, tuple[Run, list[int]]] = {}
    for run in runs:
        for item in run.items:
            name = item.request_id, 0
            values = read(run, name)
            other, expected = first.setdefault(name, (run, values))
            if values != expected:
                place = next(
                    (
                        i
                        for i, pair in enumerate(zip(values, expected, strict=False))
                        if len(set(pair)) > 1
                    ),
                    min(len(values), len(expected)),
                )
                yield (
                    item.request_id if by_name else str(run),
                    f"{what} of {item.request_id} part from those in {other} at token {place}",
                )


__all__ = ["Violation", "check_run", "check_runs", "num_parted_requests"]
