"""The work that could run now: what every active request that is not in flight can have launched.

Items whose rows await a score are not for the policy: the Scheduler launches those without asking.

Active requests are kept in admission order and looked at in that order, so an item that has just
run a depth stands in its original place again, and prompts never take turns.

A prompt item is ready for a depth when every earlier item of its request has run that depth in an
earlier launch, and so has written the keys and values that it will see. So the items of one request
stand at successive depths.
"""

from bisect import insort
from collections.abc import Iterable, Set
from itertools import pairwise

from ..config import SchedulerConfig
from ..exits import is_deciding, runs_gate
from ..items import ItemKind, PromptItem, ScheduledItem
from ..request import PromptScoring, Request, Stage
from ..view import View


def decode_item(request: Request) -> ScheduledItem:
    """Return the next pass of a request's newest token."""
    rule, pending = request.exit_rule, request.is_exit_pending
    loop = request.loops_done + 1
    return ScheduledItem(
        request,
        ItemKind.DECODE,
        depth=request.loops_done,
        first_position=request.last_position,
        count=1,
        runs_gate=runs_gate(rule, loop, pending),
        is_deciding=is_deciding(rule, loop, pending),
        output_index=len(request.output_token_ids),
    )


def prompt_item(request: Request, item: PromptItem) -> ScheduledItem:
    """Return the next pass of a prompt item."""
    is_behind = item is not request.prompt_items[0]
    return ScheduledItem(
        request,
        ItemKind.PROMPT,
        depth=item.depth,
        first_position=item.token_start,
        count=item.token_count,
        prompt_item=item,
        is_single_pass=is_behind or request.scoring is PromptScoring.EVERY_LOOP,
    )


def score_item(request: Request, item: PromptItem) -> ScheduledItem:
    """Return the rows of a prompt item whose next token is in the prompt."""
    return ScheduledItem(
        request,
        ItemKind.PROMPT,
        depth=item.depth - 1,
        first_position=item.token_start,
        count=num_targets(request, item),
        prompt_item=item,
    )


def num_targets(request: Request, item: PromptItem) -> int:
    """Return how many rows of a prompt item have a next token in the prompt."""
    return item.token_count - (item.token_end == request.num_prompt_tokens)


def coda_item(request: Request) -> ScheduledItem:
    """Return the LM-head row of a request whose newest token has left the loop."""
    return ScheduledItem(
        request,
        ItemKind.DECODE,
        depth=request.loops_done - 1,
        first_position=request.last_position,
        count=1,
        output_index=len(request.output_token_ids),
        exit_loop=request.loops_done,
    )


class Offer:
    """Ready items by stage, gathered once per step; admission adds to it.

    Args:
        active: requests in admission order.
        max_window: most prompt items of a request under way at once.
    """

    def __init__(self, active: Iterable[Request], max_window: int = 1) -> None:
        self.decode_items: list[ScheduledItem] = []
        self.prompt_items: list[ScheduledItem] = []
        self.coda_items: list[ScheduledItem] = []
        self.score_items: list[ScheduledItem] = []
        self.lacking_items: list[Request] = []
        """Requests that could have another prompt item, in admission order."""
        self.num_decoding = 0
        self.num_past_prompt = 0
        self._max_window = max_window
        for request in active:
            self.add(request)

    def add(self, request: Request) -> None:
        """Offer the items of an active request, unless it is in flight."""
        is_decoding = request.stage is Stage.RECURRENT
        self.num_decoding += is_decoding
        self.num_past_prompt += request.stage is not Stage.PREFILL
        if request.is_in_flight:
            return
        if is_decoding:
            self.decode_items.append(decode_item(request))
        elif request.stage is not Stage.PREFILL:
            self.coda_items.append(coda_item(request))
        else:
            self._add_prompt(request)

    def add_prompt_item(self, request: Request, item: PromptItem) -> None:
        """Offer a prompt item that was made after its request was looked at, in its place."""
        insort(self.prompt_items, prompt_item(request, item), key=_prompt_order)

    def _add_prompt(self, request: Request) -> None:
        items = request.prompt_items
        if not items:
            self.lacking_items.append(request)
        elif items[0].awaits_score:
            self.score_items.append(score_item(request, items[0]))
        else:
            self.prompt_items.append(prompt_item(request, items[0]))
            if self._max_window > 1:
                self._add_later_items(request)

    def _add_later_items(self, request: Request) -> None:
        items = request.prompt_items
        for before, item in pairwise(items):
            if before.depth > item.depth:
                self.prompt_items.append(prompt_item(request, item))
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
            min_coda_batch_size=config.min_coda_batch_size,
            prefill_interval=config.prefill_interval,
            prefill_chunk_size=config.chunk_size,
            prompt_shortcut=config.has_prompt_shortcut,
            num_prompt_launches=num_prompt_launches,
            decode_items=tuple(self.decode_items) if is_decode_shown else (),
            prompt_items=tuple(self.prompt_items) if is_prompt_shown else (),
            coda_items=tuple(self.coda_items) if Stage.CODA not in masked else (),
            num_decoding=self.num_decoding if is_decode_shown else 0,
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
