"""The Scheduler: requests in, batches out, results back in.

    batch = scheduler.schedule()            # which items run next; None: nothing can
    update = scheduler.apply(batch, result) # tokens and finished requests

Several batches may be out between the two. Their items are *in flight*: not offered to the
policy again, and their blocks, slots and prompt state stay theirs until the batch is applied.
"""

from .choice.chooser import Chooser
from .choice.offer import Offer
from .config import SchedulerConfig
from .errors import InterfaceError, RequestError
from .items import Batch
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
        self._in_flight: dict[Batch, None] = {}
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
        """Return the next launch, its items now in flight; None if nothing can run.

        A stage that yields nothing is masked and the policy asked again, so a step is lost only
        if nothing at all can run. What it has passed over too often goes first (`Aging`). Prompt
        rows that await a score are launched before it is asked, one item at a time, the oldest
        first.

        Args:
            now: the caller's time, in seconds that never go back, for policies that want one.

        Raises:
            InterfaceError: the policy selected what it must not, or nothing when nothing is in
                flight.
        """
        self._note_time(now)
        offer = Offer(self.resources.active, self._max_window)
        self._chooser.make_items(offer, now)
        if offer.score_items:
            return self._launch(score_batch(offer.score_items[0]))
        batch = self._chooser.ask(offer, now)
        if batch is None and not self._in_flight and self.has_unfinished_requests:
            batch = self._chooser.insist(offer, now)
        return batch if batch is None else self._launch(batch)

    def apply(self, batch: Batch, result: LaunchResult) -> StepUpdate:
        """Consume the result of a launch: progress, exits, tokens, completions.

        Raises:
            InterfaceError: the batch is not in flight, or the result does not fit it. Nothing
                has changed then, and the batch can still be failed.
        """
        self._check_in_flight(batch)
        update = self._progress.apply(batch, result)
        del self._in_flight[batch]
        self._chooser.landed(batch)
        self._unseen.extend(token.request for token in update.tokens)
        self._forget(update.finished)
        return update

    def abort(self, request_id: str, sample_index: int = 0) -> Request | None:
        """End a request as soon as nothing of it is in flight. Its id is free at once.

        Returns:
            The request if it has ended; None if it is in flight, and will be among the finished
            ones of its launch, or if no unfinished request has that id and sample index.
        """
        request = self._unfinished.pop((request_id, sample_index), None)
        if request is None:
            return None
        request.is_aborted = True
        if request.is_in_flight:
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
            InterfaceError: the batch is not in flight.
        """
        self._check_in_flight(batch)
        del self._in_flight[batch]
        finished = self._progress.fail(batch, message)
        self._forget(finished)
        return finished

    def reset(self, message: str) -> list[Request]:
        """Start over after the device state is lost.

        Every active request ends with an error, batches in flight are forgotten, blocks, slots
        and the prefix cache are empty. Waiting requests go on.

        Returns:
            The requests that ended.
        """
        self._in_flight.clear()
        finished = list(self.resources.active)
        for request in finished:
            request.is_in_flight = False
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
        """Whether anything waits, runs or is in flight."""
        return bool(self._queue) or bool(self.resources.active)

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
        if batch.launch.runs_layers:
            self._claim_blocks(batch)
        for item in batch.items:
            item.request.is_in_flight = True
        self._in_flight[batch] = None
        self._chooser.launched(batch)
        return batch

    def _claim_blocks(self, batch: Batch) -> None:
        for item in batch.items:
            # Deeper passes write where depth 0 has claimed every plane.
            if item.depth == 0:
                self.resources.blocks.grow_tables(item.request, item.first_position + item.count)

    def _forget(self, finished: list[Request]) -> None:
        for request in finished:
            # After an abort the id may belong to another request already.
            if self._unfinished.get(_name(request)) is request:
                del self._unfinished[_name(request)]

    def _check_in_flight(self, batch: Batch) -> None:
        if batch not in self._in_flight:
            raise InterfaceError(
                "expected a batch in flight, got one that was applied, failed or reset before"
            )


def _name(request: Request) -> tuple[str, int]:
    return request.request_id, request.sample_index
