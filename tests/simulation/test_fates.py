"""Logs that end before their requests do: no replay takes what it cannot know for a difference."""

from dataclasses import replace

import pytest
from simulations import COSTS, PLAN, SMALL

from looped.engine.events import FaultEvent, LaunchEvent, RequestEvent
from looped.errors import LoopedError
from looped.sched import CodaResult, ExitMode, FinishReason, SimulatedExecutor
from looped.simulation.replay import replay
from looped.simulation.runs import scheduler_config, simulate

MODES = (ExitMode.OURO, ExitMode.OURO_DELAYED, ExitMode.LOOKAHEAD)
CASES = {
    "rows wait for the LM head": {"min_coda_batch_size": 4},
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
        (ExitMode.OURO, "rows wait for the LM head", False),
        (ExitMode.OURO, "rows wait for the LM head", True),
        (ExitMode.OURO_DELAYED, "order by pending exits", False),
        (ExitMode.LOOKAHEAD, "order by pending exits", False),
    ],
)
def test_a_log_that_is_cut_anywhere_differs_nowhere(mode, case, has_fault):
    events = events_of(mode, **CASES[case])
    places = places_of(events)
    num_unknown = 0
    for count in range(1, len(places) + 1, STEP):
        cut = events[: places[count - 1] + 1]
        if has_fault:
            cut += [FaultEvent(0.0, count, True, "lost"), *events[len(cut) :]]
        (result,) = replay(cut)
        assert result.difference is None
        assert (result.fault is not None) is has_fault
        assert result.num_launches + result.num_unknown == count
        num_unknown += result.num_unknown
    assert 0 < num_unknown < 0.3 * sum(range(1, len(places) + 1, STEP))
    (whole,) = replay(events)
    assert (whole.num_launches, whole.num_unknown) == (len(places), 0)


def test_a_difference_before_the_unknown_part_is_told():
    events = events_of(ExitMode.OURO, min_coda_batch_size=4)
    places = places_of(events)
    event = events[places[3]]
    first, *others = event.record.items
    items = (replace(first, slot=first.slot + 1), *others)
    events[places[3]] = replace(event, record=replace(event.record, items=items))
    (result,) = replay(events[: places[60]])
    assert result.difference.startswith("launch 3, item 0")


@pytest.mark.parametrize("mode", MODES)
def test_logits_that_are_not_finite_end_a_token_where_it_had_left(mode, monkeypatch):
    execute = SimulatedExecutor.execute

    def fail_once(executor, batch):
        result = execute(executor, batch)
        if isinstance(result, CodaResult):
            bad = [
                item.request.request_id == "3" and item.output_index == 2 for item in batch.items
            ]
            return CodaResult(result.token_ids, result.logprobs, [not one for one in bad])
        return result

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedExecutor, "execute", fail_once)
        patch.setattr(f"{__name__}.PLAN", replace(PLAN, exits="mean:2.05"))
        events = events_of(mode)
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
