"""What a row can be after launches that nobody has read: no less, and no more, than can happen."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import exit_rules
from scheduler_rig import NUM_PLANES, request_of, rig
from stub_executor import StubPayload, check_drained

from looped.sched import (
    Batch,
    ExitDecision,
    ExitOptions,
    ExitRule,
    HeadResult,
    ItemKind,
    LaunchResult,
    Request,
    RowStatus,
    ScheduledItem,
    decide,
    is_deciding,
    resolve_exit,
)
from looped.sched.exits import RowState
from looped.sched.outlook import FIRST, Outlook, outlook_at


@settings(max_examples=300, deadline=None)
@given(
    rule=exit_rules(NUM_PLANES),
    first=st.integers(1, 6),
    signals=st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), min_size=1, max_size=12),
)
def test_what_happens_is_always_among_what_was_possible(
    rule: ExitRule, first: int, signals: list[float]
) -> None:
    """And where one outcome is left, it is what happens: a signal has nothing to say."""
    index, loop, is_pending = first, 0, False
    outlook, at = outlook_at(rule, first, NUM_PLANES), first
    for signal in signals:
        may_leave = outlook.may_leave
        outlook, moved = outlook.next
        at += moved
        if moved and rule.trace:
            outlook = outlook_at(rule, at, NUM_PLANES)
        is_open = len(outlook.states) > 1
        decision = decide(rule, loop + 1, signal, is_pending, index)
        was_deciding = is_deciding(rule, loop + 1, is_pending)
        if decision is ExitDecision.EXIT:
            assert may_leave
            index, loop, is_pending = index + 1, 0, False
        else:
            loop, is_pending = loop + 1, decision is ExitDecision.EXIT_NEXT
        assert RowState(index - at + FIRST, loop, is_pending) in outlook.states
        assert is_open or not was_deciding or decision is ExitDecision.EXIT
        assert not is_open or rule.threshold < 1


def test_outlooks_are_few_and_shared_by_requests_of_one_kind_of_rule() -> None:
    seen: set[Outlook] = set()
    for threshold in (0.1, 0.2, 0.3):
        rule = resolve_exit(
            ExitOptions(threshold=threshold, min_loops=1), ExitOptions(), NUM_PLANES
        )
        outlook = outlook_at(rule, 5, NUM_PLANES)
        for _ in range(5):
            seen.add(outlook)
            outlook = outlook.next[0]
    assert len(seen) == 5


class Host:
    """What the host can know of one row: every history that agrees with the records it has read.

    By the definitions: whatever a signal may be, `decide` says what becomes of the row.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.known = {RowState(0, NUM_PLANES - 1, False)}
        self.unread: deque[Batch] = deque()

    def after(self, states: set[RowState]) -> set[tuple[RowStatus, RowState]]:
        """What a pass can do to a row in one of these states."""
        found = set()
        for index, loops, is_pending in states:
            for signal in (-1.0, 2.0):
                decision = decide(self.request.exit_rule, loops + 1, signal, is_pending, index)
                if decision is ExitDecision.EXIT:
                    found.add((RowStatus.LEFT, RowState(index + 1, 0, False)))
                elif decision is ExitDecision.EXIT_NEXT:
                    found.add((RowStatus.LEAVES_NEXT, RowState(index, loops + 1, True)))
                else:
                    found.add((RowStatus.STAYED, RowState(index, loops + 1, False)))
        return found

    def possible(self) -> set[RowState]:
        """What the row can be when all launches that are out have run."""
        states = self.known
        for _ in self.unread:
            states = {state for _, state in self.after(states)}
        return states

    def check(self, item: ScheduledItem, *, watches_pending: bool) -> None:
        """Check an item of the next launch against what is possible."""
        states, request = self.possible(), self.request
        assert not watches_pending or len(states) == 1, "who needs depths gets them"
        if item.kind is ItemKind.DECODE:
            depths = {state.loops_done for state in states}
            indices = {state.output_index for state in states}
            pendings = {state.is_exit_pending for state in states}
            furthest = min(max(indices), request.max_tokens - 1)
            assert min(indices) < request.max_tokens, "its end is certain"
            assert item.depth == only_one(depths)
            assert item.output_index == only_one(indices)
            assert item.is_exit_pending is only_one(pendings)
            assert item.first_position == request.num_prompt_tokens + furthest - 1
        outcomes = self.after(states)
        may_leave = any(status is RowStatus.LEFT for status, _ in outcomes)
        is_watched = watches_pending and len(outcomes) > len(states)
        assert (item.passes_to_head > 0) == (may_leave or is_watched)

    def read(self, batch: Batch, head: HeadResult | None) -> None:
        """Take note of the record of the oldest launch."""
        assert self.unread.popleft() is batch
        after = self.after(self.known)
        rows = [item.request for item in batch.head_items]
        if self.request in rows:
            assert head is not None
            status = head.statuses[rows.index(self.request)]
            after = {each for each in after if each[0] is status}
        self.known = {state for _, state in after}


def only_one(values: set[int]) -> int | None:
    """The value, if there is one alone."""
    return next(iter(values)) if len(values) == 1 else None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rules=st.lists(exit_rules(NUM_PLANES), min_size=1, max_size=4),
    num_ahead=st.integers(0, 4),
    needs_depths=st.booleans(),
)
def test_an_item_says_what_is_certain_and_leaves_open_what_is_open(
    rules: list[ExitRule], num_ahead: int, needs_depths: bool
) -> None:
    """And a head follows where the row may leave, or, for who needs depths, where that is settled.

    The depth of a row, its token and its pending exit, each for itself.
    """
    scheduler, driver = rig(
        policy="deepest-first" if needs_depths else "mixed", num_blocks=1000, prompt_shortcut=False
    )
    hosts = {}
    for index, rule in enumerate(rules):
        payload = StubPayload(7 * index)
        request = request_of(str(index), max_tokens=5 + index, exit_rule=rule, payload=payload)
        scheduler.add(request)
        hosts[request] = Host(request)
    out: deque[tuple[Batch, LaunchResult]] = deque()
    while scheduler.has_unfinished_requests:
        batch = scheduler.schedule()
        if batch is not None:
            for item in batch.items:
                if item.kind is ItemKind.DECODE or item.passes_to_head == batch.num_passes:
                    hosts[item.request].check(item, watches_pending=needs_depths)
                    hosts[item.request].unread.append(batch)
            out.append((batch, driver.executor.execute(batch)))
        if batch is None or len(out) > (0 if needs_depths else num_ahead):
            applied, result = out.popleft()
            for host in hosts.values():
                if host.unread and host.unread[0] is applied and not host.request.is_finished:
                    host.read(applied, result.head)
            scheduler.apply(applied, result)
    check_drained(scheduler, driver.executor)
