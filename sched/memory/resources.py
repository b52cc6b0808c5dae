"""What an active request holds: a slot, KV blocks and prompt state, given and taken in one place.

A request is active from admission to its end. Every way to end, from a stop token to a lost
device, comes through `release`, so nothing can be held by a request that is over.
"""

from ..config import SchedulerConfig
from ..items import PromptItem
from ..request import NO_SLOT, Request, Stage
from ..states import PromptStateOwner
from .blocks import BlockManager
from .prefix import PrefixEntry


class Resources:
    """The active requests, in admission order, and everything that they hold."""

    def __init__(self, config: SchedulerConfig, states: PromptStateOwner) -> None:
        self.blocks = BlockManager(config)
        self.active: dict[Request, None] = {}
        self._config = config
        self._states = states
        self._free_slots = list(range(config.max_num_seqs - 1, -1, -1))
        self.num_admitted = 0
        """Admissions so far; the next request's admission index."""

    @property
    def has_free_slot(self) -> bool:
        """Whether one more request may be active."""
        return bool(self._free_slots)

    @property
    def num_used_slots(self) -> int:
        """Slots that are taken."""
        return self._config.max_num_seqs - len(self._free_slots)

    def activate(self, request: Request, hits: list[PrefixEntry]) -> None:
        """Give a waiting request a slot and its cached blocks.

        Without incremental KV the whole capacity is claimed here.
        """
        request.slot = self._free_slots.pop()
        request.admission_index = self.num_admitted
        self.num_admitted += 1
        self.active[request] = None
        self.blocks.open_tables(request, hits)
        if not self._config.incremental_kv:
            self.blocks.grow_tables(request, request.capacity)
        request.num_cached_tokens = len(hits) * self._config.block_size
        request.num_prefilled_tokens = request.num_written_tokens = request.num_cached_tokens
        request.stage = Stage.PREFILL

    def start_item(self, request: Request, num_tokens: int) -> PromptItem:
        """Make the next prompt item of a request, of `num_tokens` or what remains of the prompt."""
        start = request.num_chunked_tokens
        count = min(num_tokens, request.num_prompt_tokens - start)
        assert count > 0
        item = PromptItem(start, count, self._states.acquire(request))
        request.prompt_items.append(item)
        return item

    def complete_item(self, request: Request, item: PromptItem) -> None:
        """Account for a prompt item whose last launch is handed out, and move the request on.

        Launches run in order, so its place can be given to another item at once. With its last
        item the request's row begins to ride: what is left of its first token is the LM head,
        behind the launch that the item is in.
        """
        assert item is request.prompt_items[0]
        del request.prompt_items[0]
        self._states.release(item.state)
        request.num_prefilled_tokens = item.token_end
        if request.is_prompt_complete and request.max_tokens > 0:
            request.stage = Stage.RECURRENT
            request.begin_row(self._config.num_planes)

    def written(self, request: Request, num_tokens: int) -> None:
        """Account for a prompt whose first so many tokens are complete in every plane.

        Their full blocks are published.
        """
        request.num_written_tokens = num_tokens
        self.blocks.publish(request)

    def release(self, request: Request) -> None:
        """Take back everything that an active request holds.

        Launches under way may still write there: what uses it next comes behind them.
        """
        for item in request.prompt_items:
            self._states.release(item.state)
        request.prompt_items.clear()
        self.blocks.close_tables(request)
        self._free_slots.append(request.slot)
        request.slot = NO_SLOT
        del self.active[request]
