"""Replays of an engine's log: the same launches, item by item, in every way to run one."""

from dataclasses import replace
from random import Random

import pytest
from engines import drain_samples, logged_engine

from looped.engine.events import AbortEvent, EndEvent, EngineEvent, LaunchEvent, RequestEvent
from looped.errors import LoopedError
from looped.record.launch_log import read_launch_log, write_launch_log
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions, FinishReason, LaunchKind, policy_named
from looped.simulation.replay import replay

SHARED = list(range(3, 43))
"""Beginning of several prompts: two full blocks of it are found again."""


def submit(engine, start):
    """Requests of every kind that a log tells apart, some of them ended from outside."""
    random = Random(start)
    ouro = ExitOptions(threshold=0.5, min_loops=1)
    options = {
        "full": SamplingParams(max_tokens=6, ignore_eos=True),
        "live": SamplingParams(max_tokens=9, ignore_eos=True, exit=ouro),
        "delayed": SamplingParams(
            max_tokens=7, ignore_eos=True, exit=replace(ouro, mode=ExitMode.OURO_DELAYED)
        ),
        "ahead": SamplingParams(
            max_tokens=7,
            ignore_eos=True,
            exit=replace(ouro, mode=ExitMode.RANDOM_LOOKAHEAD),
        ),
        "trace": SamplingParams(
            max_tokens=5, ignore_eos=True, exit=ExitOptions(trace=(4, 1, 3, 2))
        ),
        "samples": SamplingParams(max_tokens=4, ignore_eos=True, n=3, seed=5, temperature=1.0),
        "scored": SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=0),
        "stops": SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=list(range(200))),
        "urgent": SamplingParams(max_tokens=3, ignore_eos=True, priority=-1),
    }
    for name, params in options.items():
        prompt = SHARED[: random.randrange(1, 41)] + random.choices(range(300), k=start + 3)
        engine.add_request(f"{name}-{start}", prompt, params)


def play(engine):
    """Two waves, one of them while the other runs, and aborts at three stages."""
    submit(engine, 1)
    engine.abort("urgent-1")
    for _ in range(9):
        engine.step()
    submit(engine, 2)
    engine.abort("live-1")
    for _ in range(5):
        engine.step()
    engine.add_request("live-1", SHARED, SamplingParams(max_tokens=3, ignore_eos=True))
    engine.abort("samples-2", 1)
    drain_samples(engine)


def policy_of(engine):
    return engine.scheduler_config().chosen_policy


CASES = {
    "mixed": {"policy": "mixed"},
    "mixed, read at once": {"policy": "mixed", "run_ahead": 0},
    "mixed, two launches ahead": {"policy": "mixed", "run_ahead": 2},
    "mixed, four launches ahead": {"policy": "mixed", "run_ahead": 4},
    "mixed, short chunks": {"policy": "mixed", "prefill_chunk_size": 7, "run_ahead": 2},
    "separate": {"policy": "separate", "max_prefill_batches_before_decode": 2, "run_ahead": 4},
    "atomic": {"policy": "atomic"},
    "priorities, no cache": {"scheduling_policy": "priority", "prefix_caching": False},
    "deterministic": {"deterministic": True, "policy": "atomic"},
    "order by pending exits": {"policy": "shortest-lookahead", "max_decode_rows": 2},
    "time decides": {
        "policy": "slack",
        "policy_options": (("target", "0.002"), ("costs", "ouro-1.4b-h200")),
    },
    "several chunks at once": {"policy": "wavefront", "prefill_chunk_size": 7},
}


@pytest.mark.parametrize(
    "case",
    # Chunks of another size are another ladder to compile, with any policy.
    [
        pytest.param(case, marks=pytest.mark.long) if case == "mixed, short chunks" else case
        for case in CASES
    ],
)
def test_a_replay_comes_to_the_same_launches(tiny_folder, tmp_path, case):
    events = []
    play(logged_engine(tiny_folder, events.append, **CASES[case]))
    path = tmp_path / "run.jsonl"
    write_launch_log(path, events, {})
    (result,) = replay(read_launch_log(path).events)
    assert result.difference is None
    assert result.fault is None
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    assert result.num_launches == len(launches) > 60
    # It was worth it: live exits, cache hits, scores, and requests that came in the middle.
    depths = {token.exit_depth for launch in launches for token in launch.tokens}
    assert depths == {1, 2, 3, 4}
    assert any(launch.record.kind is LaunchKind.SCORE for launch in launches)
    starts = {item.first_position for launch in launches for item in launch.record.items}
    assert (case != "mixed") or 16 in starts
    late = [event for event in events if isinstance(event, RequestEvent) and event.launch_index]
    assert len(late) >= 10
    aborts = [event for event in events if isinstance(event, AbortEvent)]
    assert len(aborts) >= 3
    ends = {event.reason for event in events if isinstance(event, EndEvent)}
    assert ends == {FinishReason.LENGTH, FinishReason.STOP, FinishReason.ABORT}
    num_ahead = max(event.launch_index - event.record.index - 1 for event in launches)
    assert num_ahead == events[0].scheduler_config().launches_ahead(policy_of(events[0]))


def test_two_engines_of_one_log_are_replayed_apart(tiny_folder):
    events = []
    first = logged_engine(tiny_folder, events.append)
    second = first.with_options(policy="separate")
    for engine in (first, second):
        engine.add_request("a", SHARED, SamplingParams(max_tokens=2, ignore_eos=True))
    while first.has_unfinished_requests() or second.has_unfinished_requests():
        first.step()
        second.step()
    results = replay(events)
    assert [result.engine.policy for result in results] == ["mixed", "separate"]
    assert all(result.difference is None and result.num_launches > 5 for result in results)


def test_another_policy_differs_and_the_first_difference_is_told(tiny_folder):
    events = []
    play(logged_engine(tiny_folder, events.append))
    (result,) = replay(events, policy=policy_named("atomic"))
    assert result.difference is not None
    assert "recorded" in result.difference
    assert "replayed" in result.difference


@pytest.mark.parametrize("part", ["slot", "first_position", "num_rows", "depth"])
def test_a_changed_item_is_noticed(tiny_folder, part):
    events = []
    play(logged_engine(tiny_folder, events.append))
    index = next(i for i, event in enumerate(events) if isinstance(event, LaunchEvent)) + 4
    event = events[index]
    first, *others = event.record.items
    items = (replace(first, **{part: getattr(first, part) + 1}), *others)
    events[index] = replace(event, record=replace(event.record, items=items))
    (result,) = replay(events)
    assert result.difference.startswith(f"launch {event.record.index}, item 0: recorded")
    assert result.num_launches == event.record.index


def test_the_replay_ends_at_a_fault(tiny_folder, monkeypatch):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    engine.add_request("a", SHARED, SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    monkeypatch.setattr(engine.runner, "pack", lambda batch: 1 / 0)
    engine.step()
    (result,) = replay(events)
    assert result.fault is not None
    assert (result.num_launches, result.difference) == (1, None)


def test_a_log_without_its_beginning_is_refused(tiny_folder):
    events = []
    play(logged_engine(tiny_folder, events.append))
    with pytest.raises(LoopedError, match="begin with an engine"):
        replay(events[1:])
    engine = events[0]
    assert isinstance(engine, EngineEvent)
    with pytest.raises(LoopedError, match="misses the first 3 launches"):
        replay([replace(engine, launch_index=3), *events[1:]])


def test_a_log_of_a_policy_that_is_not_here_is_refused(tiny_folder):
    events = []
    play(logged_engine(tiny_folder, events.append))
    absent = replace(events[0], config=events[0].config | {"policy": "absent"})
    with pytest.raises(LoopedError, match=r"cannot be replayed here.*absent"):
        replay([absent, *events[1:]])
