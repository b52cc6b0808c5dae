"""Who may enter: waiting requests in order, and the rule that lets one in.

A request is admitted iff

    required + reserved_growth + headroom + cached_claim <= free

in blocks over all planes: what its capacity needs beyond its prefix hits, what active requests
may still claim, the watermark while anything is active, and those hits that nobody holds (they
are counted as free until claimed). So growth can never fail, and nothing can deadlock. A hit is
held from the moment its first claimant enters, so two candidates never pay for it twice.
"""

from bisect import bisect_left, insort
from itertools import islice

from ..config import SchedulerConfig
from ..request import Request
from .prefix import PrefixEntry
from .resources import Resources


class AdmissionQueue:
    """Waiting requests, in order of arrival or stable by priority."""

    def __init__(self, config: SchedulerConfig, resources: Resources) -> None:
        self._config = config
        self._resources = resources
        self._blocks = resources.blocks
        self._waiting: list[Request] = []
        self._num_changes = 0
        self._settled: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request at its place."""
        insort(self._waiting, request, key=self._order)
        self._num_changes += 1

    def remove(self, request: Request) -> None:
        """Take a waiting request out of the queue."""
        index = bisect_left(self._waiting, self._order(request), key=self._order)
        assert self._waiting[index] is request
        del self._waiting[index]
        self._num_changes += 1

    def clear(self) -> list[Request]:
        """Take everybody out of the queue; returns them in order."""
        waiting, self._waiting = self._waiting, []
        self._num_changes += 1
        return waiting

    def admit(self) -> list[Request]:
        """Activate every request that may enter now; returns them in order.

        A blocked request is bypassed by those behind it, but each admission counts against its
        bypass limit, and at the limit the scan stops in front of everybody behind it. A sample
        that waits for its prompt to be computed is not there at all until then.
        """
        state = (self._num_changes, self._blocks.generation)
        if state == self._settled:
            return []
        admitted: list[Request] = []
        blocked: list[Request] = []
        candidates = (
            request for request in self._waiting if not self._blocks.awaits_leader(request)
        )
        for request in islice(candidates, self._config.admission_scan_limit):
            if not self._resources.has_free_slot:
                break
            hits = self._blocks.match(request)
            if self._fits(request, hits):
                self._resources.activate(request, hits)
                admitted.append(request)
                for earlier in blocked:
                    earlier.num_bypasses += 1
                if any(self._is_at_limit(earlier) for earlier in blocked):
                    break
            else:
                blocked.append(request)
                if self._is_at_limit(request):
                    break
        for request in admitted:
            self.remove(request)
        # Nobody else can enter before a request comes or goes, or a block is freed or published.
        # Those just admitted went, so the next call looks at the window that has moved up.
        self._settled = state
        return admitted

    def _order(self, request: Request) -> tuple[int, int]:
        is_by_priority = self._config.scheduling_policy == "priority"
        return (request.priority if is_by_priority else 0, request.arrival_index)

    def _is_at_limit(self, request: Request) -> bool:
        return request.num_bypasses >= self._config.admission_bypass_limit

    def _fits(self, request: Request, hits: list[PrefixEntry]) -> bool:
        blocks = self._blocks
        required = self._config.blocks_for(request.capacity) - blocks.num_planes * len(hits)
        num_unheld = sum(blocks.cache.is_unused(entry) for entry in hits)
        cached_claim = blocks.num_planes * num_unheld
        headroom = self._config.kv_watermark if self._resources.active else 0
        claim = required + blocks.num_reserved_blocks + headroom + cached_claim
        return claim <= blocks.num_free_blocks
