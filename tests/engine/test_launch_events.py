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
            assert event.launch_index == event.num_applied == 4  # as many as there are loops
    assert turns == [
        (0, "mixed", 0),
        (1, "separate", 0),
        (0, "mixed", 0),
        (1, "separate", 2),  # a launch's line is written when the next one is out as well
        (0, "mixed", 2),
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
    assert [event.num_applied for event in (a, b, b1, c)] == [0, 0, 0, 0]
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
    for _ in range(2):
        engine.step()
    engine.abort("c")
    for _ in range(4):  # the prompts' other loops, and two of the second tokens, one of them out
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
    assert [
        (e.request_id, e.launch_index, e.num_applied, e.stage, e.loops_done, e.num_unread)
        for e in aborts
    ] == [
        ("c", 2, 1, Stage.WAITING, 0, 0),
        ("b", 6, 5, Stage.RECURRENT, 1, 1),
    ]
    assert [ends[name].launch_index for name in "cba"] == [2, 6, len(launches_of(events))]
    assert [ends[name].num_applied for name in "cba"] == [1, 5, len(launches_of(events))]


@pytest.mark.parametrize("run_ahead", [0, 1, 2])
def test_an_abort_says_how_many_launches_are_out_with_its_row(tiny_folder, run_ahead):
    events = []
    engine = logged_engine(tiny_folder, events.append, run_ahead=run_ahead)
    engine.add_request("a", [1, 2], params(9))
    while not engine.step().tokens:
        pass
    engine.abort("a")
    drain(engine)
    abort = next(event for event in events if isinstance(event, AbortEvent))
    assert (abort.stage, abort.num_unread) == (Stage.RECURRENT, run_ahead)
    assert abort.launch_index - abort.num_applied == run_ahead
    end = next(event for event in events if isinstance(event, EndEvent))
    assert (end.reason, end.launch_index, end.num_tokens) == ("abort", abort.launch_index, 1)
    # What these brought is dropped, and so is what the host knows of the row.
    later = [launch.record for launch in launches_of(events)[abort.num_applied :]]
    assert [item.depth for record in later for item in record.items] == [None] * run_ahead


def test_an_abort_while_a_launch_is_awaited_ends_the_request_before_it(tiny_folder):
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
    assert (abort.launch_index, abort.num_applied, abort.stage) == (2, 0, Stage.PREFILL)
    end = next(event for event in events if isinstance(event, EndEvent))
    assert (end.reason, end.launch_index, end.num_tokens) == (FinishReason.ABORT, 2, 0)
    assert [launch.tokens for launch in launches_of(events)] == [(), ()]


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
    while engine.has_unfinished_requests():
        engine.step()
    complete(engine, [[3]], [params(1)])
    fault, end = events[2:4]
    # A launch that cannot be collected takes the one behind it along.
    num_lost = 2 if part == "collect" else 0
    assert fault == FaultEvent(fault.time, num_lost, 0, num_lost > 0, "RuntimeError('unlucky')")
    assert (end.request_id, end.reason) == ("a", FinishReason.ERROR)
    assert (end.launch_index, end.num_applied) == (num_lost, 0), "lost launches stay counted"
    launches = launches_of(events)
    indices = [launch.record.index for launch in launches]
    assert indices == list(range(num_lost, 4 + num_lost))
    assert launches[-1].launch_index == 4 + num_lost
