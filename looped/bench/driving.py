"""Plays a workload on anything that serves requests; what was measured is in the target's events.

Injections depend on the decoders' committed tokens alone. Wall time decides nothing, so a slow run
and a fast one see the same prompts at the same points of progress.
"""

from collections.abc import Sequence
from typing import Protocol

from .arms import Arm
from .workload import DECODER, WorkItem, Workload, kind_of


class Target(Protocol):
    """What a workload is played on."""

    def add_request(self, item: WorkItem) -> None:
        """Queues a request that emits exactly `max_tokens` tokens."""

    def step(self) -> Sequence[str]:
        """Runs one launch; the request id of every token that it brought."""

    def has_unfinished_requests(self) -> bool:
        """Whether another step may bring something."""


def drive(target: Target, workload: Workload, arm: Arm) -> None:
    """Serves an arm's requests until all are over.

    With decoders, injection i is made as soon as they have committed k + i * g tokens. Prompts
    alone (P0) come one after the other: each when everything before it is over.
    """
    for item in workload.decoders if arm.has_decoders else ():
        target.add_request(item)
    num_committed = num_injected = 0
    num_injections = workload.num_prompts if arm.has_prompts else 0

    def is_due() -> bool:
        if arm.has_decoders:
            return num_committed >= workload.injection_point(num_injected)
        return not target.has_unfinished_requests()

    while True:
        while num_injected < num_injections and is_due():
            for item in workload.injection(num_injected):
                target.add_request(item)
            num_injected += 1
        if not target.has_unfinished_requests():
            return
        num_committed += sum(kind_of(request_id) == DECODER for request_id in target.step())
