"""Rules that the run of any benchmark must keep, and the tools that further rules are made with.

The rules look at events alone; they do not ask the engine. `validity` adds those of the
interference benchmark, `throughput_rules` those of the throughput benchmark.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

from looped.engine.events import EndEvent, RequestEvent
from looped.measure.violation import Violation
from looped.record.timeline import Name, item_depths
from looped.sched import FinishReason, ItemKind

from .runs import EngineRun

AnyRun = TypeVar("AnyRun", bound=EngineRun)


def broken_rules(
    run: AnyRun, rules: Sequence[Callable[[AnyRun], Iterator[str]]]
) -> list[Violation]:
    """Every broken rule of one run. A run without its tokens is not asked for more."""
    incomplete = list(_violations(run, all_requests_complete))
    if incomplete:
        return incomplete
    return [violation for rule in rules for violation in _violations(run, rule)]


def _violations(run: AnyRun, rule: Callable[[AnyRun], Iterator[str]]) -> Iterator[Violation]:
    return (Violation(rule.__name__, str(run), message) for message in rule(run))


def all_requests_complete(run: EngineRun) -> Iterator[str]:
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


def token_loops_conserved(run: EngineRun) -> Iterator[str]:
    """Rows times passes of every request are what its tokens need: neither more nor less.

    A prompt of n tokens needs n * P; output tokens need their exit depths, but for the first, which
    the prompt brings. Rows that had ended, which the device masks, do not count.
    """
    done: Counter[tuple[Name, ItemKind]] = Counter()
    for launch in run.timeline.launches:
        for item in launch.record.items:
            name = item.request_id, item.sample_index
            done[name, item.kind] += item.num_rows * len(item_depths(launch.record, item))
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


def no_compilation(run: EngineRun) -> Iterator[str]:
    """Nothing was compiled between the first launch and the last."""
    counts = [launch.num_compilations for launch in run.timeline.launches]
    if counts[-1] != counts[0]:
        yield f"the engine compiled {counts[-1] - counts[0]} steps"
    if run.num_backend_compilations:
        yield f"JAX compiled {run.num_backend_compilations} times"


def no_preemption(run: EngineRun) -> Iterator[str]:
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


def no_kv_wait(run: EngineRun) -> Iterator[str]:
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


ENGINE_RULES: tuple[Callable[[EngineRun], Iterator[str]], ...] = (
    token_loops_conserved,
    no_compilation,
    no_preemption,
    no_kv_wait,
)
"""Rules about one run, after `all_requests_complete`."""


def same_tokens(runs: Sequence[EngineRun]) -> Iterator[tuple[str, str]]:
    """Token ids of every request are equal in all runs, in float32.

    In bfloat16 a row's bits depend on its bucket, so near ties may part. As lengths are fixed, the
    work stays the same, and `num_parted_requests` counts them instead.
    """
    if runs and runs[0].options.dtype == "float32":
        yield from differences(runs, "token ids", token_ids_of)


def alternation(
    runs: Sequence[AnyRun], label: Callable[[AnyRun], str], labels: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Rounds that do not have each label once, or do not reverse the round before: ABBA.

    Yields:
        Which round, and what was expected.
    """
    orders: dict[tuple[int, int], list[str]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.place.process, run.place.position)):
        orders[run.place.process, run.place.round].append(label(run))
    for (process, index), order in orders.items():
        if sorted(order) != sorted(labels):
            yield (
                f"process {process}, round {index}",
                f"expected each of {', '.join(labels)} once, got {', '.join(order)}",
            )
    for (place, order), (next_place, next_order) in pairwise(sorted(orders.items())):
        if place[0] == next_place[0] and next_order != order[::-1]:
            yield (
                f"process {next_place[0]}, round {next_place[1]}",
                f"expected the arms in the order {', '.join(order[::-1])}, got "
                f"{', '.join(next_order)}",
            )


def token_ids_of(run: EngineRun, name: Name) -> list[int]:
    return [visible.token.token_id for visible in run.timeline.tokens.get(name, ())]


def exit_depths_of(run: EngineRun, name: Name) -> list[int]:
    return [visible.token.exit_depth for visible in run.timeline.tokens.get(name, ())]


def differences(
    runs: Sequence[EngineRun],
    what: str,
    read: Callable[[EngineRun, Name], list[int]],
    *,
    by_name: bool = False,
) -> Iterator[tuple[str, str]]:
    """Requests that do not have what the first run with that request has."""
    first: dict[Name, tuple[EngineRun, list[int]]] = {}
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
