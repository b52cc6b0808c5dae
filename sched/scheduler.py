"""The Scheduler: requests in, batches out, results back in.

    batch = scheduler.schedule()            # which items run next; None: nothing can
    update = scheduler.apply(batch, result) # tokens and finished requests

Several batches may be out between the two; they run in the order in which they were handed out, and
are applied in that order. A decode row rides in all of them. A request that ends while launches
with it are out gives everything back at once: whoever gets it next comes behind them.
"""

from collections import deque

from .choice.chooser import Chooser
from .choice.offer import Offer
from .config import SchedulerConfig
from .errors import InterfaceError, RequestError
from .items import Batch, ItemKind
from .launches import score_batch
from .memory.admission import AdmissionQueue
from .memory.door import check_request
from .memory.resources import Resources
from .policies import Policy
from .progress import Progress
from .request import FinishReason, Request, Stage
from .results import LaunchResult, StepUpdate
from .states import PromptStateOwner


class Scheduler:
    """Decides what runs next and keeps every request's progress."""

    def __init__(
        self, config: SchedulerConfig, states: PromptStateOwner, policy: Policy | None = None
    ) -> None:
        """Build an empty scheduler.

        Args:
            config: sizes and limits.
            states: the runner's prompt state.
            policy: overrides the configuration's.

        Raises:
            ConfigError: `config` does not suit `policy`.
        """
        self.config = config
        self.policy = policy or config.chosen_policy
        config.check_policy(self.policy)
        self._max_window = config.max_window(self.policy)
        self._has_prefix_caching = config.has_prefix_caching(self.policy)
        self.resources = Resources(config, states)
        """Active requests and all that they hold; changed by the scheduler alone."""
        self._queue = AdmissionQueue(config, self.resources)
        self._chooser = Chooser(config, self.policy, self.resources, self._queue)
        self._progress = Progress(config.num_planes, self.resources)
        self._unfinished: dict[tuple[str, int], Request] = {}
        self._in_flight: deque[Batch] = deque()
        self._is_score_turn = True
        self._unseen: list[Request] = []
        """Requests that were added or brought a token since the last schedule()."""
        self._num_added = 0

    def add(self, *requests: Request) -> None:
        """Queue requests, in that order: all of them, or none.

        Raises:
            RequestError: one could never run, or has the name of an unfinished request or of
                another of these; the queue is as it was.
        """
        names = set(map(_name, requests))
        for request in requests:
            if _name(request) in self._unfinished or _name(request) not in names:
                raise RequestError(
                    f"request {request.request_id!r}: expected an id of its own, got one of an "
                    "unfinished request"
                )
            names.remove(_name(request))
            check_request(request, self.config, self.policy)
        for request in requests:
            self._queue_up(request)

    def schedule(self, now: float = 0.0) -> Batch | None:
        """Return the next launch, which is under way from now on; None if nothing can run.

        A stage that yields nothing is masked and the policy asked again, so a step is lost only
        if nothing at all can run. What it has passed over too often goes first (`Aging`). Prompt
        rows that await a score are launched before it is asked, one item at a time, the oldest
        first; while decode rows are ready, at most every second launch.

        Args:
            now: the caller's time, in seconds that never go back, for policies that want one.

        Raises:
            InterfaceError: the policy selected what it must not, or nothing while no launch is out.
        """
        self._note_time(now)
        offer = Offer(
            self.resources.active,
            self.config.num_planes,
            max_window=self._max_window,
            watches_pending=self.policy.needs_depths,
        )
        self._chooser.make_items(offer, now)
        if offer.score_items and (self._is_score_turn or not offer.decode_items):
            return self._launch(score_batch(offer.score_items[0]))
        batch = self._chooser.ask(offer, now)
        if batch is None and offer.score_items:
            batch = score_batch(offer.score_items[0])
        if batch is None and not self._in_flight and self.has_unfinished_requests:
            batch = self._chooser.insist(offer, now)
        return batch if batch is None else self._launch(batch)

    def apply(self, batch: Batch, result: LaunchResult) -> StepUpdate:
        """Consume the result of a launch: progress, exits, tokens, completions.

        Raises:
            InterfaceError: the batch is not the oldest that is out, or the result does not fit it,
                or says what no exit rule allows. Nothing has changed then.
        """
        self._check_oldest(batch)
        update = self._progress.apply(batch, result)
        self._in_flight.popleft()
        self._unseen.extend(token.request for token in update.tokens)
        self._forget(update.finished)
        return update

    def abort(self, request_id: str, sample_index: int = 0) -> Request | None:
        """End a request at once; what launches under way bring for it is dropped.

        Returns:
            The request; None if no unfinished request has that id and sample index.
        """
        request = self._unfinished.pop((request_id, sample_index), None)
        if request is None:
            return None
        if request.stage is Stage.WAITING:
            self._queue.remove(request)
            request.stage = Stage.FINISHED
            request.finish_reason = FinishReason.ABORT
        else:
            self._progress.end(request, FinishReason.ABORT)
        return request

    def fail_batch(self, batch: Batch, message: str) -> list[Request]:
        """End the requests of a launch that did not reach the device; returns them.

        Raises:
            InterfaceError: the batch is not out, or older ones are: apply these first.
        """
        self._check_oldest(batch)
        self._in_flight.popleft()
        finished = self._progress.fail(batch, message)
        self._forget(finished)
        return finished

    def reset(self, message: str) -> list[Request]:
        """Start over after the device state is lost.

        Every active request ends with an error, batches that are out are forgotten, blocks, slots
        and the prefix cache are empty. Waiting requests go on.

        Returns:
            The requests that ended.
        """
        self._in_flight.clear()
        finished = list(self.resources.active)
        for request in finished:
            self._progress.end(request, FinishReason.ERROR, message)
        self.resources.blocks.clear_cache()
        self._chooser.reset()
        self._forget(finished)
        return finished

    def fail_waiting(self, message: str) -> list[Request]:
        """End every request that waits, because nothing can run any more; returns them."""
        waiting = self._queue.clear()
        for request in waiting:
            request.stage = Stage.FINISHED
            request.finish_reason = FinishReason.ERROR
            request.error = message
        self._forget(waiting)
        return waiting

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether anything waits or runs, or a launch is out."""
        return bool(self._queue) or bool(self.resources.active) or bool(self._in_flight)

    @property
    def active_requests(self) -> tuple[Request, ...]:
        """Requests that hold a slot, in admission order."""
        return tuple(self.resources.active)

    def unfinished_request(self, request_id: str, sample_index: int = 0) -> Request | None:
        """The unfinished request of that id and sample index; None if there is none."""
        return self._unfinished.get((request_id, sample_index))

    @property
    def num_waiting(self) -> int:
        """Requests not admitted yet."""
        return len(self._queue)

    @property
    def num_active(self) -> int:
        """Requests that hold a slot."""
        return len(self.resources.active)

    @property
    def num_in_flight(self) -> int:
        """Batches scheduled and not applied."""
        return len(self._in_flight)

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that requests hold, over all planes."""
        return self.resources.blocks.num_used_blocks

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that no request holds, cached ones included."""
        return self.resources.blocks.num_free_blocks

    @property
    def num_cached_blocks(self) -> int:
        """KV blocks that the prefix cache knows, held or not."""
        return self.resources.blocks.cache.num_entries * self.config.num_planes

    def _queue_up(self, request: Request) -> None:
        if self._has_prefix_caching:
            request.prefix_keys = self.resources.blocks.cache.keys(request.prompt_token_ids)
        request.arrival_index = self._num_added
        self._queue.add(request)
        self._num_added += 1
        self._unfinished[_name(request)] = request
        self._unseen.append(request)

    def _note_time(self, now: float) -> None:
        for request in self._unseen:
            if not request.output_token_ids:
                request.arrival_time = now
            request.newest_token_time = now
        self._unseen.clear()

    def _launch(self, batch: Batch) -> Batch:
        if batch.launch.runs_layers and self.config.incremental_kv:
            self._claim_blocks(batch)
        self._is_score_turn = batch.launch.runs_layers
        self._in_flight.append(batch)
        self._progress.dispatched(batch)
        self._chooser.launched(batch)
        return batch

    def _claim_blocks(self, batch: Batch) -> None:
        for item in batch.items:
            # Deeper passes of a prompt write where depth 0 has claimed every plane.
            if item.kind is ItemKind.DECODE or item.depth == 0:
                self.resources.blocks.grow_tables(item.request, item.first_position + item.count)

    def _forget(self, finished: list[Request]) -> None:
        for request in finished:
            # After an abort the id may belong to another request already.
            if self._unfinished.get(_name(request)) is request:
                del self._unfinished[_name(request)]

    def _check_oldest(self, batch: Batch) -> None:
        if not self._in_flight or self._in_flight[0] is not batch:
            raise InterfaceError(
                "expected the oldest batch that is out, got a later one, or one that was applied, "
                "failed or reset before"
            )


def _name(request: Request) -> tuple[str, int]:
    return request.request_id, request.sample_index
