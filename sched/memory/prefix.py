"""The prefix cache's index: which full prompt blocks are known, and which may be given up.

Keys form a hash chain: key i covers every token up to the end of block i, so equal keys mean
equal prefixes (SHA-256; no comparison of tokens is needed). An entry holds one block per plane.
Entries are a forest: a child is found only through its parents, so a parent is never dropped
before its children. Who holds a block is the BlockManager's business.
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class PrefixEntry:
    """One cached block of a prompt, in every plane."""

    key: bytes
    """Hash of the salt and of all tokens up to the block's end."""
    blocks: tuple[int, ...]
    """Its block in each plane."""
    parent: PrefixEntry | None
    """The block before it."""
    children: list[PrefixEntry] = field(default_factory=list)
    """Known continuations."""


class PrefixCache:
    """Entries by key, and those among them that nobody holds, least recently used first."""

    def __init__(self, salt: str, block_size: int) -> None:
        self._block_size = block_size
        self._root_key = hashlib.sha256(f"{block_size}:{salt}".encode()).digest()
        self._entries: dict[bytes, PrefixEntry] = {}
        self._unused: dict[PrefixEntry, None] = {}

    @property
    def num_entries(self) -> int:
        """Blocks known, per plane."""
        return len(self._entries)

    @property
    def num_unused(self) -> int:
        """Entries whose blocks nobody holds."""
        return len(self._unused)

    def keys(self, token_ids: tuple[int, ...]) -> tuple[bytes, ...]:
        """Return the key of every full block of `token_ids`, in time linear in its length."""
        keys = []
        key = self._root_key
        for start in range(0, len(token_ids) - self._block_size + 1, self._block_size):
            block = array("q", token_ids[start : start + self._block_size])
            key = hashlib.sha256(key + block.tobytes()).digest()
            keys.append(key)
        return tuple(keys)

    def get(self, key: bytes) -> PrefixEntry | None:
        """Return the entry of a key, if it is known."""
        return self._entries.get(key)

    def match(self, keys: tuple[bytes, ...]) -> list[PrefixEntry]:
        """Return the entries of the longest known prefix of `keys`."""
        entries = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                break
            entries.append(entry)
        return entries

    def insert(
        self, key: bytes, blocks: tuple[int, ...], parent: PrefixEntry | None
    ) -> PrefixEntry:
        """Add an entry whose blocks are held by the request that publishes it."""
        entry = PrefixEntry(key, blocks, parent)
        self._entries[key] = entry
        if parent is not None:
            parent.children.append(entry)
        return entry

    def remove(self, entry: PrefixEntry) -> list[PrefixEntry]:
        """Forget an entry and every continuation of it; returns them, children first."""
        removed = []
        stack = [entry]
        while stack:
            current = stack.pop()
            stack.extend(current.children)
            removed.append(current)
            self._unused.pop(current, None)
            del self._entries[current.key]
        if entry.parent is not None:
            entry.parent.children.remove(entry)
        removed.reverse()
        return removed

    def mark_used(self, entry: PrefixEntry) -> None:
        """Note that somebody holds the entry's blocks."""
        self._unused.pop(entry, None)

    def mark_unused(self, entry: PrefixEntry) -> None:
        """Note that nobody holds the entry's blocks any more; it is the most recently used."""
        self._unused[entry] = None

    def is_unused(self, entry: PrefixEntry) -> bool:
        """Whether nobody holds the entry's blocks."""
        return entry in self._unused

    def oldest_leaf(self) -> PrefixEntry:
        """Return the entry to give up next: the least recently used that nothing continues.

        Blocks are released children first, so that is the first one nearly always. If every unused
        entry is continued by one in use (of a request that computed the shared part itself), the
        continuation is forgotten first; its block stays with its holder.
        """
        for entry in self._unused:
            if not entry.children:
                return entry
        entry = next(iter(self._unused))
        while entry.children:
            entry = entry.children[0]
        return entry

    def entries(self) -> list[PrefixEntry]:
        """Return every entry, parents before their children."""
        return list(self._entries.values())
