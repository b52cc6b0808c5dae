"""The work that could run now: what every active request can have launched.

Items whose rows await a score are not for the policy: the Scheduler launches those without asking.

Active requests are kept in admission order and looked at in that order, so an item that has just
run a depth stands in its original place again, and prompts never take turns.

A decode row rides in launch after launch until it is known to have ended: what it does in those
under way is decided on the device, and what is not certain of it is None here. A prompt item is
ready for a depth when every earlier item of its request has been launched for that depth before: it
will have written the keys and values that the item sees, since launches run in order. So the items
of one request stand at successive depths.
"""

from bisect import insort
from collections.abc import Iterable, Set
from itertools import pairwise

from ..config import SchedulerConfig
from ..items import ItemKind, PromptItem, ScheduledItem
from ..request import PromptScoring, Request, Stage
from ..view import View


def decode_item(
    request: Request, num_planes: int, *, watches_pending: bool = False
) -> ScheduledItem:
    """Return the next pass of a request's row.

    Args:
        request: past its prompt.
        num_planes: P.
        watches_pending: whether a head is to tell of an exit that is settled a loop ahead, too.
    """
    outlook, index = request.outlook, request.outlook_index
    assert outlook is not None
    furthest = min(index + outlook.furthest, request.max_tokens - 1)
    return ScheduledItem(
        request,
        ItemKind.DECODE,
        outlook.depth,
        len(request.prompt_token_ids) + furthest - 1,
        1,
        None,
        False,
        index if outlook.is_certain_token else None,
        outlook.is_exit_pending,
        int(outlook.may_leave or (watches_pending and outlook.is_decided)),
    )


def prompt_item(request: Request, item: PromptItem, num_planes: int) -> ScheduledItem:
    """Return the next pass of a prompt item."""
    is_behind = item is not request.prompt_items[0]
    draws = _ends_prompt(request, item) and not _awaits_last_score(request, item)
    return ScheduledItem(
        request,
        ItemKind.PROMPT,
        depth=item.depth,
        first_position=item.token_start,
        count=item.token_count,
        prompt_item=item,
        is_single_pass=is_behind or request.scoring is PromptScoring.EVERY_LOOP,
        passes_to_head=num_planes - item.depth if draws else 0,
    )


def score_item(request: Request, item: PromptItem, num_planes: int) -> ScheduledItem:
    """Return the rows of a prompt item whose next token is in the prompt."""
    draws = _ends_prompt(request, item) and item.depth == num_planes
    return ScheduledItem(
        request,
        ItemKind.PROMPT,
        depth=item.depth - 1,
        first_position=item.token_start,
        count=num_targets(request, item),
        prompt_item=item,
        passes_to_head=int(draws),
    )


def num_targets(request: Request, item: PromptItem) -> int:
    """Return how many rows of a prompt item have a next token in the prompt."""
    return item.token_count - (item.token_end == request.num_prompt_tokens)


def _ends_prompt(request: Request, item: PromptItem) -> bool:
    """Whether the first token is drawn after the item's last depth, or its last score."""
    return item.token_end == request.num_prompt_tokens and request.max_tokens > 0


def _awaits_last_score(request: Request, item: PromptItem) -> bool:
    return request.scoring is not PromptScoring.NONE and num_targets(request, item) > 0


class Offer:
    """Ready items by stage, gathered once per step; admission adds to it.

    Args:
        active: requests in admission order.
        num_planes: P.
        max_window: most prompt items of a request under way at once.
        watches_pending: see `decode_item`.
    """

    def __init__(
        self,
        active: Iterable[Request],
        num_planes: int,
        *,
        max_window: int = 1,
        watches_pending: bool = False,
    ) -> None:
        self.decode_items: list[ScheduledItem] = []
        self.prompt_items: list[ScheduledItem] = []
        self.score_items: list[ScheduledItem] = []
        self.lacking_items: list[Request] = []
        """Requests that could have another prompt item, in admission order."""
        self.num_past_prompt = 0
        self._num_planes = num_planes
        self._max_window = max_window
        self._watches_pending = watches_pending
        for request in active:
            self.add(request)

    def add(self, request: Request) -> None:
        """Offer the items of an active request."""
        if request.stage is Stage.PREFILL:
            self._add_prompt(request)
            return
        self.num_past_prompt += 1
        if request.outlook_index < request.max_tokens:  # else its end is certain
            item = decode_item(request, self._num_planes, watches_pending=self._watches_pending)
            self.decode_items.append(item)

    def add_prompt_item(self, request: Request, item: PromptItem) -> None:
        """Offer a prompt item that was made after its request was looked at, in its place."""
        insort(self.prompt_items, prompt_item(request, item, self._num_planes), key=_prompt_order)

    def _add_prompt(self, request: Request) -> None:
        items = request.prompt_items
        if not items:
            if not request.is_prompt_complete:  # else its last launch is out
                self.lacking_items.append(request)
        elif items[0].awaits_score:
            self.score_items.append(score_item(request, items[0], self._num_planes))
        else:
            self.prompt_items.append(prompt_item(request, items[0], self._num_planes))
            if self._max_window > 1:
                self._add_later_items(request)

    def _add_later_items(self, request: Request) -> None:
        items = request.prompt_items
        for before, item in pairwise(items):
            if before.depth > item.depth:
                self.prompt_items.append(prompt_item(request, item, self._num_planes))
        if len(items) < self._max_window and _may_follow(request, items[-1]):
            self.lacking_items.append(request)

    def view(
        self,
        config: SchedulerConfig,
        masked: Set[Stage],
        *,
        now: float,
        num_prompt_launches: int,
        num_waiting: int,
        num_active: int,
    ) -> View:
        """Return the picture for the policy, with masked stages shown as empty."""
        is_decode_shown = Stage.RECURRENT not in masked
        is_prompt_shown = Stage.PREFILL not in masked
        return View(
            now=now,
            num_planes=config.num_planes,
            max_num_batched_tokens=config.budget,
            max_num_seqs=config.max_num_seqs,
            max_decode_rows=config.decode_row_limit,
            prefill_interval=config.prefill_interval,
            prefill_chunk_size=config.chunk_size,
            prompt_shortcut=config.has_prompt_shortcut,
            num_prompt_launches=num_prompt_launches,
            decode_items=tuple(self.decode_items) if is_decode_shown else (),
            prompt_items=tuple(self.prompt_items) if is_prompt_shown else (),
            num_past_prompt=self.num_past_prompt,
            num_waiting=num_waiting if is_prompt_shown else 0,
            num_active=num_active,
        )


def _may_follow(request: Request, item: PromptItem) -> bool:
    """Whether the request's next prompt item, made now behind `item`, would be ready at once.

    A scored prompt has one item at a time: its scores come in order.
    """
    is_last = item.token_end == request.num_prompt_tokens
    return item.depth > 0 and not is_last and request.scoring is PromptScoring.NONE


def _prompt_order(item: ScheduledItem) -> tuple[int, int]:
    return item.request.admission_index, item.first_position
