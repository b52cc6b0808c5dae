"""KV blocks: who holds which, and how many are left.

A block is K and V of `block_size` positions in ONE plane, and a request has a table per plane.
Its tables grow together: the P blocks of the same positions, a *group*, are claimed, shared and
freed as one, and a group is known by its block of plane 0. A group that a prefix-cache entry
names and no request holds counts as free, and is given up when plain free blocks run out.
"""

from __future__ import annotations

from ..config import SchedulerConfig
from ..errors import InterfaceError
from ..request import PromptScoring, Request, Stage
from .prefix import PrefixCache, PrefixEntry


class BlockManager:
    """The pool of blocks, the tables of active requests, and the prefix cache over both."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.num_planes = config.num_planes
        self.block_size = config.block_size
        self.cache = PrefixCache(f"{config.num_planes}:{config.cache_salt}", config.block_size)
        self.num_reserved_blocks = 0
        """Blocks that active requests may still claim."""
        self.generation = 0
        """Counts the events that can let a request in: frees, and completed prompt items."""
        self._config = config
        self._free = list(range(config.num_blocks - 1, -1, -1))
        self._num_holders: dict[int, int] = {}
        self._entry_of_group: dict[int, PrefixEntry] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self._free) + self.num_planes * self.cache.num_unused

    @property
    def num_used_blocks(self) -> int:
        """Blocks that requests hold; a shared block counts once."""
        return self.num_planes * len(self._num_holders)

    def match(self, request: Request) -> list[PrefixEntry]:
        """Return the cached blocks that `request` can start from.

        A scored prompt starts from nothing: every row of it has to be there.
        """
        if request.scoring is not PromptScoring.NONE:
            return []
        return self.cache.match(request.prefix_keys[: self._num_shareable(request)])

    def awaits_leader(self, request: Request) -> bool:
        """Whether `request` would compute what another sample of its prompt is about to publish.

        Should that one end before it has, the next one takes its place.
        """
        for other in request.earlier_samples:
            if other.num_written_tokens == other.num_prompt_tokens:
                return False
            if other.stage is not Stage.FINISHED:
                return other.num_published_blocks < self._num_shareable(request)
        return False

    def open_tables(self, request: Request, hits: list[PrefixEntry]) -> None:
        """Start the tables of `request` with cached blocks and reserve the rest of its capacity."""
        for entry in hits:
            group = entry.blocks[0]
            self._num_holders[group] = self._num_holders.get(group, 0) + 1
            self.cache.mark_used(entry)
        request.block_tables = [
            [entry.blocks[plane] for entry in hits] for plane in range(self.num_planes)
        ]
        request.num_published_blocks = len(hits)
        self.num_reserved_blocks += self._unclaimed_blocks(request)

    def grow_tables(self, request: Request, num_tokens: int) -> None:
        """Claim what `request` lacks to hold `num_tokens`: in every plane, or not at all.

        Raises:
            InterfaceError: too few free blocks, which admission rules out.
        """
        num_groups = -(-num_tokens // self.block_size) - len(request.block_tables[0])
        if num_groups <= 0:
            return
        num_claimed = num_groups * self.num_planes
        if num_claimed > self.num_free_blocks:
            raise InterfaceError(
                f"expected {num_claimed} free blocks for request {request.request_id!r}, got "
                f"{self.num_free_blocks}; admission must keep free what it promises"
            )
        while len(self._free) < num_claimed:
            self._forget(self.cache.oldest_leaf())
        for _ in range(num_groups):
            for table in request.block_tables:
                table.append(self._free.pop())
            self._num_holders[request.block_tables[0][-1]] = 1
        self.num_reserved_blocks -= num_claimed

    def close_tables(self, request: Request) -> None:
        """Free what `request` holds, last blocks first, so that children are given up first."""
        self.num_reserved_blocks -= self._unclaimed_blocks(request)
        for blocks in zip(*map(reversed, request.block_tables), strict=True):
            group = blocks[0]
            self._num_holders[group] -= 1
            if self._num_holders[group] > 0:
                continue
            del self._num_holders[group]
            entry = self._entry_of_group.get(group)
            if entry is None:
                self._free.extend(blocks)
            else:
                self.cache.mark_unused(entry)
        request.block_tables = []
        self.generation += 1

    def publish(self, request: Request) -> None:
        """Make the prompt blocks that are complete in every plane known to the prefix cache.

        A block that another request published first stays private here; the blocks after it
        continue the other's chain. If a parent is gone the rest waits: nobody could find it.
        """
        self.generation += 1
        keys = request.prefix_keys
        num_complete = min(request.num_written_tokens // self.block_size, len(keys))
        for index in range(request.num_published_blocks, num_complete):
            parent = self.cache.get(keys[index - 1]) if index > 0 else None
            if index > 0 and parent is None:
                return
            if self.cache.get(keys[index]) is None:
                blocks = tuple(table[index] for table in request.block_tables)
                self._entry_of_group[blocks[0]] = self.cache.insert(keys[index], blocks, parent)
            request.num_published_blocks = index + 1

    def withdraw(self, request: Request) -> None:
        """Forget every entry that stands in the tables of `request`, and what continues it.

        For a request whose logits were not finite: it published these blocks or started from
        them, and none can be trusted.
        """
        for key, group in zip(request.prefix_keys, request.block_tables[0], strict=False):
            entry = self.cache.get(key)
            if entry is not None and entry.blocks[0] == group:
                self._forget(entry)
                return

    def clear_cache(self) -> None:
        """Forget every entry: the device has lost the blocks' contents."""
        for entry in self.cache.entries():
            if entry.parent is None:
                self._forget(entry)

    def _num_shareable(self, request: Request) -> int:
        """Prompt blocks, per plane, that a request can start from.

        The last prompt token is always recomputed: its hidden row makes the first output.
        """
        num_blocks = (request.num_prompt_tokens - 1) // self.block_size
        return min(num_blocks, len(request.prefix_keys))  # no keys without prefix caching

    def _forget(self, entry: PrefixEntry) -> None:
        for removed in self.cache.remove(entry):
            del self._entry_of_group[removed.blocks[0]]
            if removed.blocks[0] not in self._num_holders:
                self._free.extend(removed.blocks)

    def _unclaimed_blocks(self, request: Request) -> int:
        num_held = self.num_planes * len(request.block_tables[0])
        return self._config.blocks_for(request.capacity) - num_held
