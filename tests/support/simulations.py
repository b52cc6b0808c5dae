"""Small simulated runs for tests."""

from collections.abc import Iterable
from dataclasses import replace

from looped.engine.events import EndEvent, LaunchEvent, LogEvent, RequestEvent
from looped.record.timeline import Timeline
from looped.sched import CostModel
from looped.simulation.loads.workload import Lengths
from looped.simulation.runs import WorkloadPlan, scheduler_config, simulate

COSTS = CostModel(
    name="made-up",
    source="a test",
    num_planes=4,
    weight_floor=4e-3,
    row_seconds=1e-4,
    decode_key_seconds=1e-7,
    prompt_key_seconds=1e-8,
    head_floor=1e-3,
    head_row_seconds=1e-5,
    host_launch_seconds=2e-4,
)
PLAN = WorkloadPlan(
    num_planes=4,
    num_requests=12,
    prompt_tokens=Lengths(5, 90),
    output_tokens=Lengths(2, 20),
    rate=20.0,
)
SMALL = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "prefill_chunk_size": 32}


def simulated_events(policy: str = "mixed", seed: int = 0, **options: object) -> list[LogEvent]:
    """Events of a run of a second or so."""
    events: list[LogEvent] = []
    simulated(policy, seed, events, **options)
    return events


def simulated(
    policy: str = "mixed", seed: int = 0, events: list[LogEvent] | None = None, **options: object
) -> Timeline:
    """The same, in order."""
    workload = PLAN.workload(seed)
    config = scheduler_config(workload, SMALL | {"policy": policy} | options)
    sink = None if events is None else events.append
    return simulate(workload, config, COSTS, sink=sink)


def events_one_by_one() -> list[LogEvent]:
    """Events of a run whose requests come one after the other: each when the last one has ended."""
    workload = replace(PLAN, rate=None, concurrency=1).workload(0)
    events: list[LogEvent] = []
    simulate(workload, scheduler_config(workload, SMALL), COSTS, sink=events.append)
    return events


def under_one_id(events: Iterable[LogEvent]) -> list[LogEvent]:
    """Every request under the same id, as a server whose clients choose ids may have it."""
    named: list[LogEvent] = []
    for event in events:
        if isinstance(event, RequestEvent | EndEvent):
            event = replace(event, request_id="same")
        elif isinstance(event, LaunchEvent):
            tokens = tuple(replace(token, request_id="same") for token in event.tokens)
            event = replace(event, tokens=tokens)
        named.append(event)
    return named
