"""Logs that end before their requests do, and what launches brought: no replay is led astray."""

from dataclasses import replace

import pytest
from simulations import COSTS, PLAN, SMALL

from looped.engine.events import FaultEvent, LaunchEvent, RequestEvent
from looped.errors import LoopedError
from looped.sched import ExitMode, FinishReason, RowStatus, SimulatedExecutor
from looped.simulation.replay import replay
from looped.simulation.runs import scheduler_config, simulate

MODES = (ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD)
CASES = {
    "read at once": {"run_ahead": 0},
    "one launch ahead": {},
    "many launches ahead": {"run_ahead": 4},
    "order by pending exits": {"policy": "shortest-lookahead", "max_decode_rows": 2},
}
STEP = 7
"""Launches between two places where a log is cut."""


def events_of(mode, **options):
    workload = replace(PLAN, exit_mode=mode, num_requests=8).workload(0)
    events = []
    simulate(workload, scheduler_config(workload, SMALL | options), COSTS, sink=events.append)
    return events


def places_of(events):
    return [place for place, event in enumerate(events) if isinstance(event, LaunchEvent)]


@pytest.mark.parametrize(
    ("mode", "case", "has_fault"),
    [
        (ExitMode.OURO, "read at once", False),
        (ExitMode.OURO, "one launch ahead", False),
        (ExitMode.OURO, "one launch ahead", True),
        (ExitMode.OURO_DELAYED, "many launches ahead", False),
        (ExitMode.OURO_DELAYED, "order by pending exits", False),
        (ExitMode.LOOKAHEAD, "one launch ahead", True),
        (ExitMode.LOOKAHEAD, "order by pending exits", False),
    ],
)
def test_a_log_that_is_cut_anywhere_differs_nowhere(mode, case, has_fault):
    """All that was applied is compared; what was out then has no line, and is not."""
    events = events_of(mode, **CASES[case])
    places = places_of(events)
    num_out = 0
    for count in range(1, len(places) + 1, STEP):
        cut = events[: places[count - 1] + 1]
        num_out += cut[-1].launch_index - count
        if has_fault:
            launch_index = cut[-1].launch_index
            fault = FaultEvent(0.0, launch_index, count, True, "lost")
            cut += [fault, *events[len(cut) :]]
        (result,) = replay(cut)
        assert result.difference is None
        assert (result.fault is not None) is has_fault
        assert result.num_launches == count
    assert (num_out > 0) is (case in ("one launch ahead", "many launches ahead"))
    (whole,) = replay(events)
    assert (whole.num_launches, whole.difference) == (len(places), None)


def test_a_difference_before_the_end_of_a_cut_log_is_told():
    events = events_of(ExitMode.OURO)
    places = places_of(events)
    event = events[places[3]]
    first, *others = event.record.items
    items = (replace(first, slot=first.slot + 1), *others)
    events[places[3]] = replace(event, record=replace(event.record, items=items))
    (result,) = replay(events[: places[60]])
    assert result.difference.startswith("launch 3, item 0")


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_row_that_is_said_to_leave_where_it_stayed_is_a_difference(run_ahead):
    events = events_of(ExitMode.OURO, run_ahead=run_ahead)
    place = next(
        place
        for place in places_of(events)
        if any(item.status is RowStatus.STAYED for item in events[place].record.items)
    )
    event = events[place]
    items = tuple(
        replace(item, status=RowStatus.LEFT) if item.status is RowStatus.STAYED else item
        for item in event.record.items
    )
    events[place] = replace(event, record=replace(event.record, items=items))
    (result,) = replay(events)
    assert result.difference.startswith(f"launch {event.record.index}: recorded tokens")


def test_a_row_that_no_head_looked_at_is_a_difference():
    events = events_of(ExitMode.OURO)
    place = next(
        place for place in places_of(events) if any(i.status for i in events[place].record.items)
    )
    event = events[place]
    items = tuple(replace(item, status=None) for item in event.record.items)
    events[place] = replace(event, record=replace(event.record, items=items))
    (result,) = replay(events)
    assert result.difference.startswith(f"launch {event.record.index}, item")


def test_what_no_exit_rule_allows_is_a_difference():
    events = events_of(ExitMode.OURO)
    place = next(place for place in places_of(events) if events[place].tokens)
    event = events[place]
    items = tuple(
        replace(item, status=item.status and RowStatus.STAYED) for item in event.record.items
    )
    # A first token comes out of the prompt's last loop, and nowhere else.
    events[place] = replace(event, record=replace(event.record, items=items))
    (result,) = replay(events)
    assert result.difference.startswith(f"launch {event.record.index}: output token 0")


@pytest.mark.parametrize("run_ahead", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_logits_that_are_not_finite_end_a_token_where_it_had_left(mode, run_ahead, monkeypatch):
    execute = SimulatedExecutor.execute

    def fail_once(executor, batch):
        result = execute(executor, batch)
        if result.head is None:
            return result
        requests = [item.request for item in batch.head_items]
        bad = [one.request_id == "3" and len(one.output_token_ids) == 2 for one in requests]
        return replace(result, head=replace(result.head, is_finite=[not one for one in bad]))

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedExecutor, "execute", fail_once)
        patch.setattr(f"{__name__}.PLAN", replace(PLAN, exits="mean:2.05"))
        events = events_of(mode, run_ahead=run_ahead)
    assert [getattr(event, "reason", None) for event in events].count(FinishReason.ERROR) == 1
    (result,) = replay(events)
    assert result.difference is None
    assert result.num_launches == len(places_of(events))


def test_a_log_that_lacks_a_line_is_refused():
    events = events_of(ExitMode.OURO)
    place = next(i for i, event in enumerate(events) if isinstance(event, RequestEvent))
    with pytest.raises(LoopedError, match=r"misses the line of request '0', sample 0"):
        replay(events[:place] + events[place + 1 :])
    orphan = replace(events[place], sample_index=1, num_earlier_samples=1, request_id="new")
    with pytest.raises(LoopedError, match=r"misses the line of request 'new', sample 0"):
        replay([*events[: place + 1], orphan, *events[place + 1 :]])
