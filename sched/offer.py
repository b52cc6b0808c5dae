"""The work that could run now: one scheduled item for every active request not in flight.

Items whose rows await a score are not for the policy: the Scheduler launches those by itself.

Active requests are kept in admission order and looked at in that order, so an item that has just
run a depth stands in its original place again, and prompts never take turns.
"""

from bisect import insort
from collections.abc import Iterable, Set

from .config import SchedulerConfig
from .exits import is_deciding, runs_gate
from .items import ItemKind, ScheduledItem
from .request import PromptScoring, Request, Stage
from .view import View


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


def prompt_item(request: Request) -> ScheduledItem:
    """Return the next pass of a request's prompt chunk."""
    item = request.prompt_item
    assert item is not None
    return ScheduledItem(
        request,
        ItemKind.PROMPT,
        depth=item.depth,
        first_position=item.token_start,
        count=item.token_count,
        prompt_item=item,
        is_single_pass=request.scoring is PromptScoring.EVERY_LOOP,
    )


def score_item(request: Request) -> ScheduledItem:
    """Return the rows of a request's prompt chunk whose next token is in the prompt."""
    item = request.prompt_item
    assert item is not None
    return ScheduledItem(
        request,
        ItemKind.PROMPT,
        depth=item.depth - 1,
        first_position=item.token_start,
        count=num_targets(request),
        prompt_item=item,
    )


def num_targets(request: Request) -> int:
    """Return how many rows of the chunk under way have a next token in the prompt."""
    item = request.prompt_item
    assert item is not None
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
    """Ready items by stage, gathered once per step; admission adds to it."""

    def __init__(self, active: Iterable[Request]) -> None:
        self.decode_items: list[ScheduledItem] = []
        self.prompt_items: list[ScheduledItem] = []
        self.coda_items: list[ScheduledItem] = []
        self.score_items: list[ScheduledItem] = []
        self.lacking_items: list[Request] = []
        """Requests whose next prompt item has to be made, in admission order."""
        self.num_decoding = 0
        self.num_past_prompt = 0
        for request in active:
            self.add(request)

    def add(self, request: Request) -> None:
        """Offer the item of an active request, unless it is in flight."""
        is_decoding = request.stage is Stage.RECURRENT
        self.num_decoding += is_decoding
        self.num_past_prompt += request.stage is not Stage.PREFILL
        if request.is_in_flight:
            return
        if is_decoding:
            self.decode_items.append(decode_item(request))
        elif request.stage is not Stage.PREFILL:
            self.coda_items.append(coda_item(request))
        elif request.prompt_item is None:
            self.lacking_items.append(request)
        elif request.prompt_item.awaits_score:
            self.score_items.append(score_item(request))
        else:
            self.prompt_items.append(prompt_item(request))

    def add_prompt_item(self, request: Request) -> None:
        """Offer a prompt item that was made after its request was looked at, in its place."""
        insort(self.prompt_items, prompt_item(request), key=_admission_order)

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
            max_num_batched_tokens=config.max_num_batched_tokens,
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


def _admission_order(item: ScheduledItem) -> int:
    return item.request.admission_index
