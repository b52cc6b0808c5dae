"""The requests of a launch log, to be simulated again on other costs or under another policy."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from looped.engine.events import EndEvent, EngineEvent, LaunchEvent, LogEvent, RequestEvent
from looped.errors import UsageError
from looped.record.timeline import Name
from looped.sched import FinishReason

from .prompts import VOCAB_SIZE, LoggedPrompts
from .workload import WorkloadRequest


@dataclass
class _Served:
    """One request, gathered from the events after it."""

    event: RequestEvent
    prompt_token_ids: tuple[int, ...]
    earlier_samples: list["_Served"]
    depths: list[int] = field(default_factory=list)
    has_failed: bool = False


def workload_of_log(events: Iterable[LogEvent], num_planes: int) -> list[WorkloadRequest]:
    """Requests of one engine's log, with their arrivals, lengths and depths as they were.

    Their prompts share prefixes as `LoggedPrompts` has it. Samples wait for the first to compute
    their prompt, and none is scored again. Those that were aborted have the tokens that they
    emitted; without any, and those that failed, they are left out. An id that came again is another
    request. The first arrives at 0.

    Args:
        events: of a log, from its start.
        num_planes: P of the costs on which they are to be simulated.

    Raises:
        UsageError: the log is of several engines, of a model of another P, or begins in the middle:
            it lacks its engine, or a request that it has tokens of.
    """
    served: list[_Served] = []
    current: dict[Name, _Served] = {}
    engines: set[int] = set()
    prompts: LoggedPrompts | None = None
    for event in events:
        match event:
            case EngineEvent():
                _check_engine(event, engines, num_planes)
                prompts = prompts or LoggedPrompts(VOCAB_SIZE, event.config["block_size"])
            case RequestEvent():
                if prompts is None:
                    raise UsageError("expected the log to begin with an engine, got a request")
                earlier = [
                    _of(current, (event.request_id, index))
                    for index in range(event.num_earlier_samples)
                ]
                served.append(_Served(event, prompts.token_ids(event), earlier))
                current[event.request_id, event.sample_index] = served[-1]
            case LaunchEvent():
                for token in event.tokens:
                    name = token.request_id, token.sample_index
                    _of(current, name).depths.append(token.exit_depth)
            case EndEvent(reason=FinishReason.ERROR):
                _of(current, (event.request_id, event.sample_index)).has_failed = True
    start = min((one.event.time for one in served), default=0.0)
    kept = [one for one in served if one.depths and not one.has_failed]
    places = {id(one): place for place, one in enumerate(kept)}
    return [
        WorkloadRequest(
            one.event.num_prompt_tokens,
            len(one.depths),
            one.event.time - start,
            tuple(one.depths),
            one.event.exit_rule,
            one.event.priority,
            prompt_token_ids=one.prompt_token_ids,
            earlier_samples=tuple(
                places[id(other)] for other in one.earlier_samples if id(other) in places
            ),
        )
        for one in kept
    ]


def _check_engine(event: EngineEvent, engines: set[int], num_planes: int) -> None:
    engines.add(event.engine_index)
    if len(engines) > 1:
        raise UsageError(
            "expected a log of one engine, got one of several (an engine that is built anew after "
            "a failure is another one); a workload is what one engine was asked"
        )
    if event.config["num_planes"] != num_planes:
        raise UsageError(
            f"the log is of a model of {event.config['num_planes']} loops, the cost table of one "
            f"of {num_planes}; choose a table of that model"
        )


def _of(current: dict[Name, _Served], name: Name) -> _Served:
    if name not in current:
        raise UsageError(
            f"the log misses the line of request {name[0]!r}, sample {name[1]}; it begins in the "
            "middle, or is damaged"
        )
    return current[name]
