"""Small simulated runs for tests."""

from looped.launch_events import LogEvent
from looped.sched import CostModel
from looped.simulation.runs import WorkloadPlan, scheduler_config, simulate
from looped.simulation.workload import Lengths
from looped.timeline import Timeline

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
