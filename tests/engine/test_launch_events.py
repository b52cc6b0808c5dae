"""The events of a launch log: whatever decides what a scheduler does next is in one of them."""

from dataclasses import replace

import pytest
from engines import NUM_SLOTS, SMALL, complete, drain, drain_samples, logged_engine

from looped.engine.events import (
    AbortEvent,
    EndEvent,
    EngineEvent,
    FaultEvent,
    LaunchEvent,
    RequestEvent,
)
from looped.sampling_params import SamplingParams
from looped.sched import (
    ConfigError,
    ExitMode,
    ExitOptions,
    ExitRule,
    FinishReason,
    LaunchKind,
    PromptScoring,
    Stage,
)


def params(num_tokens):
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


def launches_of(events):
    return [event for event in events if isinstance(event, LaunchEvent)]


def test_the_log_says_how_the_engine_schedules_before_anything_else(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    complete(engine, [[311, 225, 7], list(range(3, 43)), [9]], [params(n) for n in (3, 2, 4)])
    first, *others = events
    assert isinstance(first, EngineEvent)
    assert not any(isinstance(event, EngineEvent) for event in others)
    assert first.scheduler_config() == replace(engine.scheduler_config)
    assert (first.policy, first.engine_index, first.launch_index) == ("mixed", 0, 0)
    assert first.config["num_blocks"] == SMALL.num_blocks
    for launch in launches_of(events):
        assert launch.record.bucket in first.ladders[launch.record.kind]
    assert (first.is_deterministic, first.records_gates) == (False, False)


def test_a_deterministic_engine_is_logged_as_one(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append, deterministic=True)
    engine.add_request("a", [1, 2], params(1))
    engine.abort("a")
    assert events[0].is_deterministic
    assert events[0].ladders[LaunchKind.RECURRENT] == (SMALL.max_num_batched_tokens,)


def test_a_policy_that_is_not_installed_is_named(tiny_folder):
    events = []
    logged_engine(tiny_folder, events.append).add_request("a", [1], params(1))
    engine = events[0]
    absent = replace(engine, config=engine.config | {"policy": "absent"})
    with pytest.raises(ConfigError, match="absent"):
        absent.scheduler_config()
    newer = replace(engine, config=engine.config | {"newer": 1})
    with pytest.raises(ConfigError, match=r"other options than ours.*newer"):
        newer.scheduler_config()


def test_engines_that_take_turns_are_told_apart(tiny_folder):
    events = []
    first = logged_engine(tiny_folder, events.append)
    second = first.with_options(policy="separate")
    for engine, name in ((first, "a"), (second, "b"), (first, "c")):
        engine.add_request(name, [1, 2], params(1))
    drain(second)
    drain(first)
    seen, turns = None, []
    for event in events:
        if isinstance(event, EngineEvent):
            seen = event
            turns.append((event.engine_index, event.policy, event.launch_index))
        elif isinstance(event, RequestEvent):
            assert seen.engine_index == (event.request_id == "b")
            assert event.launch_index == 0
        elif isinstance(event, EndEvent):
            assert seen.engine_index == (event.request_id == "b")
            assert event.launch_index == 5  # four loops and a coda
    assert turns == [
        (0, "mixed", 0),
        (1, "separate", 0),
        (0, "mixed", 0),
        (1, "separate", 0),
        (0, "mixed", 0),
    ]


def test_a_request_is_logged_with_what_its_scheduling_depends_on(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    block = list(range(3, 19))
    engine.add_request("a", [*block, 1], params(2))
    engine.step()
    rule = ExitOptions(mode=ExitMode.OURO_DELAYED, threshold=0.25, min_loops=1, max_loops=3)
    several = SamplingParams(
        max_tokens=1, n=2, temperature=1.0, priority=5, prompt_logprobs=0, exit=rule
    )
    engine.add_request("b", [*block, *block, 2], several)
    trace = SamplingParams(max_tokens=3, exit=ExitOptions(trace=(4, 1, 2)))
    engine.add_request("c", [7, *block], trace)
    drain_samples(engine)
    a, b, b1, c = (event for event in events if isinstance(event, RequestEvent))
    assert [event.launch_index for event in (a, b, b1, c)] == [0, 1, 1, 1]
    assert b.exit_rule == ExitRule(
        mode=ExitMode.OURO_DELAYED, threshold=0.25, min_loops=1, max_loops=3
    )
    assert c.exit_rule.trace == (4, 1, 2)
    assert (b.scoring, b1.scoring) == (PromptScoring.LAST_LOOP, PromptScoring.NONE)
    assert [(event.sample_index, event.num_earlier_samples) for event in (b, b1)] == [
        (0, 0),
        (1, 1),
    ]
    assert [event.priority for event in (a, b, b1, c)] == [0, 5, 5, 0]
    # Equal keys mean equal prefixes: of the first block, but not of one that stands elsewhere.
    assert len(a.prefix_keys) == 1
    assert b.prefix_keys == b1.prefix_keys
    assert b.prefix_keys[0] == a.prefix_keys[0]
    assert len({*a.prefix_keys, *b.prefix_keys, *c.prefix_keys}) == 3


def test_a_log_has_no_keys_without_prefix_caching(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append, prefix_caching=False)
    complete(engine, [list(range(3, 43)), [9]], [params(1)] * 2)
    keys = [event.prefix_keys for event in events if isinstance(event, RequestEvent)]
    assert keys == [(), ()]


def test_aborts_are_logged_with_their_place_and_stage(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    others = [f"other {slot}" for slot in range(NUM_SLOTS - 2)]
    for name in ("a", "b", *others, "c"):
        engine.add_request(name, [1, 2], params(4))
    engine.step()
    engine.abort("c")
    for _ in range(5):  # the prompts' other loops and codas, and a loop of the second tokens
        engine.step()
    engine.abort("b")
    engine.abort("nobody")
    drain(engine)
    assert launches_of(events)[0].queues.waiting == 1
    ends = {event.request_id: event for event in events if isinstance(event, EndEvent)}
    assert {name: end.reason for name, end in ends.items()} == {
        **dict.fromkeys(("a", *others), "length"),
        "b": "abort",
        "c": "abort",
    }
    assert [e.request_id for e in events if isinstance(e, RequestEvent)] == ["a", "b", *others, "c"]
    aborts = [event for event in events if isinstance(event, AbortEvent)]
    assert [(e.request_id, e.launch_index, e.stage, e.loops_done) for e in aborts] == [
        ("c", 1, Stage.WAITING, 0),
        ("b", 6, Stage.RECURRENT, 1),
    ]
    assert [ends[name].launch_index for name in "cba"] == [1, 6, len(launches_of(events))]
    assert not any(event.is_in_flight for event in aborts)


def test_an_abort_in_flight_is_told_from_one_between_launches(tiny_folder):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    engine.add_request("a", [1, 2], params(4))
    collect = engine.runner.collect

    def abort_and_collect(launched):
        engine.abort("a")
        return collect(launched)

    engine.runner.collect = abort_and_collect
    drain(engine)
    abort = next(event for event in events if isinstance(event, AbortEvent))
    assert (abort.launch_index, abort.is_in_flight) == (0, True)
    end = events[-1]
    assert (end.reason, end.launch_index, end.num_tokens) == (FinishReason.ABORT, 1, 0)


@pytest.mark.parametrize("part", ["pack", "collect"])
def test_a_launch_that_fails_is_logged_before_the_ends_that_it_causes(tiny_folder, part):
    events = []
    engine = logged_engine(tiny_folder, events.append)
    works = getattr(engine.runner, part)

    def fails(*_):
        setattr(engine.runner, part, works)
        raise RuntimeError("unlucky")

    engine.add_request("a", [1, 2], params(1))
    setattr(engine.runner, part, fails)
    engine.step()
    complete(engine, [[3]], [params(1)])
    fault, end = events[2:4]
    assert fault == FaultEvent(fault.time, 0, part == "collect", "RuntimeError('unlucky')")
    assert (end.request_id, end.reason, end.launch_index) == ("a", FinishReason.ERROR, 0)
    # The failed launch has no line, and the runner has given it an index if it began.
    indices = [launch.record.index for launch in launches_of(events)]
    assert indices == list(range(part == "collect", 5 + (part == "collect")))
