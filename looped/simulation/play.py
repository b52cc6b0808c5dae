"""A simulator's workload on an engine, with a log: the two can be held against each other."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from looped.engine.events import LogEvent
from looped.engine.llm_engine import LLMEngine
from looped.engine.observer import LaunchObserver, LaunchRecorder
from looped.record.timeline import Name, Timeline
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions, Request

from .loads.workload import Workload, WorkloadRequest


@dataclass(frozen=True)
class Played:
    """What an engine made of a workload."""

    events: tuple[LogEvent, ...]
    arrivals: dict[Name, float]
    """When each request was due, on the log's clock; the engine looks between launches."""

    @property
    def timeline(self) -> Timeline:
        return Timeline(self.events)

    def recorded(self, workload: Workload) -> Workload:
        """The workload that was played, with the exit rules and depths that its requests had."""
        timeline = self.timeline
        requests: list[WorkloadRequest] = []
        for index, one in enumerate(workload.requests):
            name = str(index), 0
            depths = tuple(token.token.exit_depth for token in timeline.tokens[name])
            rule = timeline.requests[name].exit_rule
            requests.append(replace(one, depths=depths, exit_rule=rule))
        return replace(workload, requests=requests)


def play(
    build: Callable[[LaunchObserver], LLMEngine],
    workload: Workload,
    *,
    exits: ExitOptions | None = None,
    waits_for_device: bool = False,
) -> Played:
    """Serves a workload in real time, in this thread: arrivals are seen between launches.

    Args:
        build: makes a fresh engine that tells an observer; compiled ahead.
        workload: its vocabulary is the model's, or smaller.
        exits: how tokens exit; None: at the workload's depths.
        waits_for_device: whether the engine waits for every launch, for a log to fit costs to.
    """
    events: list[LogEvent] = []
    recorder = LaunchRecorder(events.append, waits_for_device=waits_for_device)
    zero = time.perf_counter()  # the recorder's, but for a microsecond
    engine = build(recorder)
    arrivals = workload.arrivals()
    requests: dict[str, Request] = {}
    due: dict[Name, float] = {}
    start = time.perf_counter()
    while True:
        for arrival in arrivals.due(time.perf_counter() - start):
            request = arrival.request
            requests[request.request_id] = request
            due[request.request_id, 0] = start - zero + arrival.time
            engine.add_request(
                request.request_id,
                request.prompt_token_ids,
                SamplingParams(
                    max_tokens=request.max_tokens,
                    ignore_eos=True,
                    exit=exits or ExitOptions(trace=request.exit_rule.trace),
                ),
            )
        if engine.has_unfinished_requests():
            for completion in engine.step().completions:
                now = time.perf_counter() - start
                arrivals.ended(requests[completion.request_id], now)
        elif (next_time := arrivals.next_time) is None:
            return Played(tuple(events), due)
        else:
            time.sleep(max(0.0, next_time - (time.perf_counter() - start)))
